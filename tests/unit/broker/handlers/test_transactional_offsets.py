"""Offsets in a transaction: pending until it ends, refused if it does not have the partition."""

import asyncio
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.coordinator.groups.offsets import UnstableOffset
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T = TopicPartition("t", 0)


async def init(handled: Handled) -> InitProducerIdResponse:
    await handled.find_coordinators()
    await handled.create_topic("t")
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    response: InitProducerIdResponse = await handled.call(ApiKey.INIT_PRODUCER_ID, request, 5)
    return response


async def commit(
    handled: Handled, producer: InitProducerIdResponse, version: int, *, group_id: str = "g"
) -> list[int]:
    """Commit offset 9 of t and of a topic that does not exist; the error of each."""
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_metadata=None
    )
    topics = [
        TxnOffsetCommitRequestTopic(name=name, partitions=[partition]) for name in ("t", "gone")
    ]
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        member_id="",
        topics=topics,
    )
    response = await handled.call(ApiKey.TXN_OFFSET_COMMIT, request, version)
    return [topic.partitions[0].error_code for topic in response.topics]


def test_from_version_5_on_the_groups_partition_is_added_and_offsets_count_at_the_end(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(handled, producer, 5) == [0, unknown]
        (groups,) = handled.services.groups.machines()
        assert groups.offsets.fetch("g", T, is_stable=True) == UnstableOffset(T)
        request = EndTxnRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        assert (await handled.call(ApiKey.END_TXN, request, 5)).error_code == 0
        while True:
            committed = groups.offsets.fetch("g", T, is_stable=True)
            if not isinstance(committed, UnstableOffset):
                break
            await asyncio.sleep(0.01)  # until the marker is written
        assert committed is not None
        assert committed.offset == 9

    handle(tmp_path, scenario)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_an_older_producer_must_have_added_the_groups_partition(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        assert (await commit(handled, producer, version))[0] == code

    handle(tmp_path, scenario)


def test_a_group_has_an_id(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        codes = await commit(handled, producer, 5, group_id="")
        assert codes[0] == ErrorCode.INVALID_GROUP_ID

    handle(tmp_path, scenario)
