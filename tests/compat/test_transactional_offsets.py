"""TxnOffsetCommit in every version, byte by byte, with its neighbours that make it matter."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, NamedTuple

import pytest

from compat.adapter import wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import create_topic, list_offset
from fakes.group_members import subscription
from ottla.errors import ErrorCode
from ottla.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

VERSIONS: Final = range(6)
SAYS_MEMBER: Final = range(3, 6)
IMPLICIT: Final = 5  # from here on the group's partition joins by itself
FETCHES_STABLE: Final = range(7, 10)

_numbers = count(1)


class Writer(NamedTuple):
    """A transactional id and who may write for it now."""

    name: str
    id: int
    epoch: int


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("offsets") / "data",
        {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
        },
    )
    served.start()
    with connected(served.address) as raw:
        create_topic(raw, "t", 2)
    yield served
    served.stop()


@pytest.fixture
def group(raw: RawConnection) -> str:
    name = f"group-{next(_numbers)}"
    find(raw, name, 0)
    return name


@pytest.fixture
def writer(raw: RawConnection) -> Writer:
    name = f"writer-{next(_numbers)}"
    find(raw, name, 1)
    return begun(raw, name)


def find(raw: RawConnection, key: str, key_type: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    wait_until(lambda: raw.ask(request, 6).coordinators[0].error_code == 0, "it is found")


def begun(raw: RawConnection, name: str) -> Writer:
    """A new producer, which fences whoever had the name before."""
    answer: Any = None
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )

    def is_begun() -> bool:
        nonlocal answer
        answer = raw.ask(request, 4)
        return bool(answer.error_code == 0)

    wait_until(is_begun, "its transaction is aborted, its coordinator has loaded")
    return Writer(name, answer.producer_id, answer.producer_epoch)


def add_offsets(raw: RawConnection, writer: Writer, group: str) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=writer.name,
        producer_id=writer.id,
        producer_epoch=writer.epoch,
        group_id=group,
    )
    # The markers of the transaction before may still be under way.
    wait_until(lambda: raw.ask(request, 3).error_code == 0, "the offsets' partition is added")


def commit(
    raw: RawConnection,
    writer: Writer,
    group: str,
    version: int,
    *,
    at: int = 5,
    topic: str = "t",
    metadata: str | None = "m",
    **member: Any,
) -> ErrorCode:
    """Commit offset `at` of partition 0 in a transaction; the partition's error."""
    place = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=at, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id=writer.name,
        group_id=group,
        producer_id=writer.id,
        producer_epoch=writer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
        **member,
    )
    (found,) = raw.ask(request, version).topics
    assert found.name == topic
    (partition,) = found.partitions
    assert partition.partition_index == 0
    return ErrorCode(partition.error_code)


def added(raw: RawConnection, writer: Writer, group: str, version: int) -> None:
    if version < IMPLICIT:
        add_offsets(raw, writer, group)


def end(raw: RawConnection, writer: Writer, version: int, *, is_commit: bool) -> Writer:
    """End the transaction; who may write from now on."""
    request = EndTxnRequest(
        transactional_id=writer.name,
        producer_id=writer.id,
        producer_epoch=writer.epoch,
        committed=is_commit,
    )
    answer = raw.ask(request, 5 if version >= IMPLICIT else 3)
    assert answer.error_code == 0
    if version >= IMPLICIT:
        return Writer(writer.name, answer.producer_id, answer.producer_epoch)
    return writer


def fetched(
    raw: RawConnection, group: str, *, version: int = 9, require_stable: bool = True
) -> tuple[int, str, ErrorCode]:
    """Offset and metadata of partition 0, and its error."""
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])],
        require_stable=require_stable,
    )
    answer = raw.ask(request, version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    (found,) = topics[0].partitions
    return found.committed_offset, found.metadata, ErrorCode(found.error_code)


UNSTABLE: Final = (-1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
NOTHING: Final = (-1, "", ErrorCode.NONE)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_offset_counts_from_the_commit_on(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    added(raw, writer, group, version)
    assert commit(raw, writer, group, version) is ErrorCode.NONE
    for fetch_version in FETCHES_STABLE:
        assert fetched(raw, group, version=fetch_version) == UNSTABLE
        assert fetched(raw, group, version=fetch_version, require_stable=False) == NOTHING
    end(raw, writer, version, is_commit=True)
    wait_until(lambda: fetched(raw, group) == (5, "m", ErrorCode.NONE), "it is committed")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_abort_leaves_the_offset_where_it_was(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    added(raw, writer, group, version)
    assert commit(raw, writer, group, version, at=5) is ErrorCode.NONE
    writer = end(raw, writer, version, is_commit=True)
    wait_until(lambda: fetched(raw, group)[0] == 5, "it is committed")

    def commits_again() -> bool:
        added(raw, writer, group, version)
        code = commit(raw, writer, group, version, at=6, metadata=None)
        return code is ErrorCode.NONE

    wait_until(commits_again, "the first transaction is complete")
    assert fetched(raw, group) == UNSTABLE
    end(raw, writer, version, is_commit=False)
    wait_until(lambda: fetched(raw, group) == (5, "m", ErrorCode.NONE), "it is aborted")


@pytest.mark.parametrize("version", range(IMPLICIT))
def test_the_groups_partition_must_have_joined_the_transaction(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert commit(raw, writer, group, version) is expected
    assert fetched(raw, group) == NOTHING


@pytest.mark.parametrize("version", SAYS_MEMBER)
def test_a_member_of_another_generation_is_refused(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    added(raw, writer, group, version)
    code = commit(raw, writer, group, version, member_id="m", generation_id=3)
    assert code is ErrorCode.ILLEGAL_GENERATION, "there is no such group"
    member_id = joined(raw, group, "instance")
    good: dict[str, Any] = {
        "member_id": member_id,
        "generation_id": 1,
        "group_instance_id": "instance",
    }
    assert commit(raw, writer, group, version, **good) is ErrorCode.NONE
    for change, expected in (
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "other", "group_instance_id": None}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "other"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"group_instance_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert commit(raw, writer, group, version, at=9, **(good | change)) is expected, change
    end(raw, writer, version, is_commit=True)
    wait_until(lambda: fetched(raw, group)[0] == 5, "only the good one counts")


def joined(raw: RawConnection, group: str, instance: str) -> str:
    """A group of one static member in generation 1; the member's id."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription("other"))
    join = raw.ask(
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[protocol],
        ),
        7,
    )
    assert (join.error_code, join.generation_id) == (0, 1)
    sync = raw.ask(
        SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=join.member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        ),
        5,
    )
    assert sync.error_code == 0
    return str(join.member_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_producer_that_was_replaced_is_refused(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    added(raw, writer, group, version)
    assert commit(raw, writer, group, version) is ErrorCode.NONE
    begun(raw, writer.name)
    wait_until(lambda: fetched(raw, group) == NOTHING, "its transaction is aborted")
    refusals = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    if version < IMPLICIT:
        refusals |= {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
    assert commit(raw, writer, group, version) in refusals
    assert fetched(raw, group) == NOTHING


@pytest.mark.parametrize("version", VERSIONS)
def test_what_cannot_be_committed_is_refused_by_its_own_code(
    raw: RawConnection, writer: Writer, group: str, version: int
) -> None:
    added(raw, writer, group, version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(raw, writer, group, version, topic="nowhere") is unknown
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(raw, writer, group, version, metadata="m" * 5000) is too_large
    assert commit(raw, writer, "", version) is ErrorCode.INVALID_GROUP_ID
    assert fetched(raw, group) == NOTHING


def test_what_is_pending_goes_with_the_group_or_by_itself(
    raw: RawConnection, writer: Writer, group: str, new_name: Callable[[], str]
) -> None:
    assert commit(raw, writer, group, 5) is ErrorCode.NONE
    place = OffsetDeleteRequestPartition(partition_index=0)
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name="t", partitions=[place])]
    )
    assert raw.ask(request, 0).topics[0].partitions[0].error_code == 0
    assert fetched(raw, group) == NOTHING
    other = new_name()
    find(raw, other, 0)
    assert commit(raw, writer, other, 5) is ErrorCode.NONE
    deleted = raw.ask(DeleteGroupsRequest(groups_names=[other]), 2)
    assert deleted.results[0].error_code == 0
    end(raw, writer, 5, is_commit=True)
    wait_until(lambda: is_decided(raw), "markers are everywhere")
    assert fetched(raw, group) == NOTHING
    assert fetched(raw, other) == NOTHING


def is_decided(raw: RawConnection) -> bool:
    """No partition of the groups' topic has an open transaction."""
    return all(
        list_offset(raw, "__consumer_offsets", -1, partition=index, isolation_level=1).offset
        == list_offset(raw, "__consumer_offsets", -1, partition=index).offset
        for index in range(3)
    )
