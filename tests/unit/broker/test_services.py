"""What handlers use: coordinators that exist once they are needed, and not before."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.broker.services import Services
from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.errors import CoordinatorNotAvailable

COORDINATORS = {"groups", "transactions", "producer_ids", "produce_verification"}


def made(services: Services) -> set[str]:
    """The coordinators that exist."""
    return COORDINATORS & services.__dict__.keys()


def test_a_broker_that_only_moves_records_has_no_coordinator(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        services = handled.services
        await handled.create_topic("t")
        await services.expire_offsets()
        await services.expire_transactional_ids()
        services.note_image(ClusterImage(), services.state.image)
        assert list(services.collect_groups()) == []
        services.close_coordinators()
        assert made(services) == set()

    handle(tmp_path, scenario)


def test_a_coordinator_is_made_once(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        services = handled.services
        assert services.groups is services.groups
        assert made(services) == {"groups"}
        assert services.produce_verification is services.produce_verification
        assert made(services) == COORDINATORS, "it asks the transaction coordinator"

    handle(tmp_path, scenario)


def test_coordinators_whose_topics_exist_are_there_after_a_start(tmp_path: Path) -> None:
    """Deadlines of their members and transactions pass, though no request has come."""

    async def first(handled: Handled) -> None:
        assert made(handled.services) == set()
        await handled.services.groups.find("g")

    async def second(handled: Handled) -> None:
        assert made(handled.services) == {"groups"}
        await handled.services.transactions.find("t")

    async def third(handled: Handled) -> None:
        assert made(handled.services) >= {"groups", "transactions"}

    for scenario in (first, second, third):
        handle(tmp_path, scenario)


def test_coordinators_that_exist_are_closed(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        services = handled.services
        await handled.find_coordinators()
        _ = services.produce_verification
        services.close_coordinators()
        for coordinator in (services.groups, services.transactions):
            with pytest.raises(CoordinatorNotAvailable, match="stopping"):
                await coordinator.find("key")

    handle(tmp_path, scenario)


def test_coordinators_that_exist_follow_images_and_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def expire(self: GroupCoordinator) -> None:
        calls.append("expire")

    monkeypatch.setattr(GroupCoordinator, "expire", expire)
    monkeypatch.setattr(
        GroupCoordinator, "note_image", lambda self, old, new: calls.append("image")
    )

    async def scenario(handled: Handled) -> None:
        services = handled.services
        _ = services.groups
        services.note_image(ClusterImage(), services.state.image)
        await services.expire_offsets()
        assert calls == ["image", "expire"]
        assert list(services.collect_groups()), "its metrics are shown"

    handle(tmp_path, scenario)
