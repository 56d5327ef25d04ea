"""Creation of topics: served when it returns, taken back if it fails, limited if automatic."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.cluster.controller.topics import NewTopic
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC
from ottla.errors import ApiError, LeaderNotAvailable, StorageFailed, TopicAlreadyExists
from ottla.replication.replicas import Replicas


def test_results_are_in_the_order_of_the_topics(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        creation = handled.services.topic_creation
        first, again = await creation.create([NewTopic(name="a"), NewTopic(name="a")])
        assert not isinstance(first, ApiError)
        assert first.name == "a"
        assert isinstance(again, TopicAlreadyExists)
        assert ("a", 0) in handled.services.replicas.leaders

    handle(tmp_path, scenario)


def test_a_topic_whose_logs_cannot_be_made_is_deleted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(handled: Handled) -> None:
        full = StorageFailed("the disk is full")
        monkeypatch.setattr(
            Replicas, "failure_of", lambda replicas, name: full if name == "bad" else None
        )
        topics = [NewTopic(name="good"), NewTopic(name="bad")]
        good, bad = await handled.services.topic_creation.create(topics)
        assert not isinstance(good, ApiError)
        assert bad is full
        assert handled.services.state.image.topics.keys() == {"good"}

    handle(tmp_path, scenario)


def test_a_topic_that_exists_is_not_missing(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        creation = handled.services.topic_creation
        assert await creation.create_missing(["a", OFFSETS_TOPIC]) == {}
        assert await creation.create_missing(["a"]) == {}
        assert handled.services.state.image.topics[OFFSETS_TOPIC].is_internal

    handle(tmp_path, scenario)


@pytest.mark.parametrize("limit", ["per.request", "per.second"])
def test_automatic_creation_is_limited_per_request_and_per_second(
    tmp_path: Path, limit: str
) -> None:
    async def scenario(handled: Handled) -> None:
        handled.services.settings.change({f"auto.create.topics.max.{limit}": "3"}, {})
        names = [f"t{number}" for number in range(5)]
        refused = await handled.services.topic_creation.create_automatically([*names, "t0"])
        assert list(refused) == names[3:]
        assert {type(error) for error in refused.values()} == {LeaderNotAvailable}

    handle(tmp_path, scenario)
