"""Fetch by hand, case by case; the properties of the same name hold it to the generic codec."""

from dataclasses import dataclass

import pytest

from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import encode
from ottla.protocol.hot_fetch import (
    FETCH_FLEXIBLE,
    FETCH_TOPIC_IDS,
    FetchedPartition,
    FetchPartition,
    read_fetch,
    write_fetched,
)
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.messages import fetch as generic

VERSIONS = list(APIS[ApiKey.FETCH].versions)
ID = bytes(range(16))
every_version = pytest.mark.parametrize("version", VERSIONS)


@dataclass(frozen=True)
class FakeRange:
    """A range of a segment file: bytes that are sent and not read."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)


def key_in(version: int) -> TopicKey:
    return ID if version >= FETCH_TOPIC_IDS else "orders"


def request_in(version: int) -> generic.FetchRequest:
    """A follower's request with a session, for two partitions; a third is forgotten."""
    partitions = [
        generic.FetchPartition(
            partition=index,
            current_leader_epoch=4,
            fetch_offset=100 + index,
            last_fetched_epoch=3,
            log_start_offset=7,
            partition_max_bytes=1 << 20,
        )
        for index in (0, 1)
    ]
    has_session = version >= 7
    return generic.FetchRequest(
        replica_id=5 if version < 15 else -1,
        replica_state=generic.ReplicaState(replica_id=5),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=1,
        session_id=9 if has_session else 0,
        session_epoch=2 if has_session else -1,
        topics=[generic.FetchTopic(topic="orders", topic_id=Uuid(ID), partitions=partitions)],
        forgotten_topics_data=[
            generic.ForgottenTopic(topic="orders", topic_id=Uuid(ID), partitions=[2, 3])
        ]
        if has_session
        else [],
        rack_id="r1",
    )


@every_version
def test_a_request_is_read_in_every_version(version: int) -> None:
    found = read_fetch(memoryview(b"??" + encode(request_in(version), version)), 2, version)
    epoch = 4 if version >= 9 else -1
    last_epoch = 3 if version >= 12 else -1
    log_start = 7 if version >= 5 else -1
    assert found.topics == [
        (
            key_in(version),
            [
                FetchPartition(index, 100 + index, 1 << 20, epoch, last_epoch, log_start)
                for index in (0, 1)
            ],
        )
    ]
    assert found.replica_id == 5
    assert (found.wait_ms_max, found.bytes_min, found.bytes_max) == (500, 1, 1 << 24)
    assert found.isolation_level == 1
    assert (found.session_id, found.session_epoch) == ((9, 2) if version >= 7 else (0, -1))
    assert found.forgotten == ([(key_in(version), [2, 3])] if version >= 7 else [])


@every_version
def test_a_request_that_is_cut_anywhere_is_a_violation(version: int) -> None:
    wire = encode(request_in(version), version)
    for size in range(len(wire)):
        with pytest.raises(ProtocolViolation):
            read_fetch(memoryview(wire[:size]), 0, version)


@every_version
def test_topics_and_partitions_count_against_the_limit(version: int) -> None:
    """One topic with two partitions, and one forgotten topic with two."""
    wire = memoryview(encode(request_in(version), version))
    count = 6 if version >= 7 else 3
    assert read_fetch(wire, 0, version, elements_max=count).topics
    for elements_max in range(count):
        with pytest.raises(ProtocolViolation):
            read_fetch(wire, 0, version, elements_max=elements_max)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < FETCH_FLEXIBLE])
def test_a_topic_without_a_name_is_a_violation(version: int) -> None:
    head = bytes(17 if version < 7 else 25)
    topics = "00000001 ffff 00000000"
    with pytest.raises(ProtocolViolation, match="a topic name is null"):
        read_fetch(memoryview(head + bytes.fromhex(topics)), 0, version)
    if version >= 7:
        forgotten = "00000000 00000001 ffff 00000000"
        with pytest.raises(ProtocolViolation, match="a topic name is null"):
            read_fetch(memoryview(head + bytes.fromhex(forgotten)), 0, version)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 15])
def test_a_consumer_names_no_replica_whatever_other_tags_it_sends(version: int) -> None:
    consumer = request_in(version)
    consumer.replica_state = generic.ReplicaState()
    wire = encode(consumer, version)
    assert wire.endswith(b"\0"), "no tags"
    assert read_fetch(memoryview(wire), 0, version).replica_id == -1
    tagged = wire[:-1] + bytes.fromhex("01 00 03 03") + b"c1"
    assert read_fetch(memoryview(tagged), 0, version).replica_id == -1


def fetched_in(
    version: int, partitions: list[FetchedPartition[FakeRange]]
) -> tuple[list[bytes | FakeRange], bytes]:
    """The parts of a response, and the frame that the generic codec makes of the same."""
    key = key_in(version)
    parts = write_fetched(7, version, [(key, partitions)], error_code=0, session_id=9)
    message = generic.FetchResponse(
        session_id=9 if version >= 7 else 0,
        responses=[
            generic.FetchTopicResponse(
                topic="orders",
                topic_id=Uuid(ID),
                partitions=[
                    generic.FetchPartitionResponse(
                        partition_index=partition.partition,
                        high_watermark=partition.high_watermark,
                        last_stable_offset=partition.last_stable_offset,
                        log_start_offset=partition.log_start_offset,
                        diverging_epoch=generic.EpochEndOffset()
                        if partition.diverging is None
                        else generic.EpochEndOffset(
                            epoch=partition.diverging[0], end_offset=partition.diverging[1]
                        ),
                        aborted_transactions=None
                        if partition.aborted is None
                        else [
                            generic.AbortedTransaction(producer_id=producer, first_offset=first)
                            for producer, first in partition.aborted
                        ],
                        records=b"" if partition.records is None else partition.records.content,
                    )
                    for partition in partitions
                ],
            )
        ],
    )
    header = RequestHeader(ApiKey.FETCH, version, 7, None)
    return parts, bytes(response_frame(header, message))


def sent(parts: list[bytes | FakeRange]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.content for part in parts)


@every_version
def test_a_response_is_bytes_between_the_ranges(version: int) -> None:
    records = FakeRange(b"batches" * 30)
    parts, frame = fetched_in(
        version,
        [
            FetchedPartition(0, 0, 50, 40, 5, [(3, 11), (4, 12)], None, records),
            FetchedPartition(1, 0, 60, 60, 6, None, (2, 30), None),
        ],
    )
    assert sent(parts) == frame
    assert [part for part in parts if isinstance(part, FakeRange)] == [records]
    assert len(parts) == 3


@every_version
def test_a_response_that_ends_with_a_range_has_no_empty_part_behind_it(version: int) -> None:
    """Only flexible versions end with tags."""
    parts, frame = fetched_in(
        version, [FetchedPartition(0, 0, 50, 50, 5, [], None, FakeRange(b"x" * 300))]
    )
    assert sent(parts) == frame
    assert all(parts)
    assert isinstance(parts[-1], FakeRange) == (version < FETCH_FLEXIBLE)


@every_version
def test_a_response_without_topics_is_its_header(version: int) -> None:
    parts: list[bytes | FakeRange] = write_fetched(7, version, [])
    header = RequestHeader(ApiKey.FETCH, version, 7, None)
    assert sent(parts) == response_frame(header, generic.FetchResponse())
