"""The transaction coordinator: its limits, and a next transaction that waits for the last."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.records import State
from ottla.coordinator.transactions.transactions import End, Init
from ottla.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTransactionTimeout,
    PolicyViolation,
)
from ottla.model import TopicPartition

T = TopicPartition("t", 0)


async def init(handled: Handled, transactional_id: str, timeout_ms: int = 1000) -> ProducerIdentity:
    request = Init(transactional_id=transactional_id, timeout_ms=timeout_ms)
    error, producer = await handled.services.transactions.init(request)
    assert error is ErrorCode.NONE
    assert producer is not None
    return producer


def test_transactional_ids_are_limited_and_known_ones_go_on(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        for name in ("a", "b"):
            await init(handled, name)
        with pytest.raises(PolicyViolation, match=r"max\.transactional\.ids"):
            await init(handled, "c")
        assert (await init(handled, "a")).epoch == 1

    handle(tmp_path, scenario, max_transactional_ids="2")


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(tmp_path: Path, timeout_ms: int) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            await init(handled, "a", timeout_ms)

    handle(tmp_path, scenario)


def test_a_transactional_id_is_not_empty(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        with pytest.raises(InvalidRequest):
            await init(handled, "")

    handle(tmp_path, scenario)


def test_the_next_transaction_waits_until_the_last_has_all_its_markers(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        coordinator = handled.services.transactions
        producer = await init(handled, "a", 60_000)
        log = handled.services.replicas.leaders[T].log
        for round_number in range(1, 6):
            assert await coordinator.add("a", producer, [T], 2) is ErrorCode.NONE
            assert log.end_offset == round_number - 1, "the marker of the last is there"
            end = End(transactional_id="a", producer=producer, is_commit=True, version=2)
            error, following = await coordinator.end(end)
            assert error is ErrorCode.NONE
            assert following is not None
            producer = following
        assert producer.epoch == 5

    handle(tmp_path, scenario)


def test_unused_ids_expire_and_open_transactions_do_not(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        coordinator = handled.services.transactions
        await init(handled, "idle")
        producer = await init(handled, "open", 60_000)
        await coordinator.add("open", producer, [T], 2)
        coordinator._origin_ms += 30 * 24 * 3_600_000
        await coordinator.expire()
        (machine,) = coordinator.machines()
        assert list(machine.by_id) == ["open"]
        assert machine.by_id["open"].state is State.ONGOING

    handle(tmp_path, scenario)
