"""Produce and Fetch by hand are held to the bytes of the generic codec."""

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol import hot
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import encode
from ottla.protocol.messages import fetch as generic_fetch
from ottla.protocol.messages import produce as generic_produce

PRODUCE_VERSIONS = list(APIS[ApiKey.PRODUCE].versions)
FETCH_VERSIONS = list(APIS[ApiKey.FETCH].versions)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20)
uuids = st.binary(min_size=16, max_size=16)


@dataclass(frozen=True)
class FakeRange:
    """Stands for a range of a segment file: bytes that are sent, not read."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)


def topic_key(draw: st.DrawFn, by_id: bool) -> str | bytes:
    return draw(uuids) if by_id else draw(names)


@st.composite
def produce_requests(draw: st.DrawFn) -> tuple[int, hot.ProduceRequest]:
    version = draw(st.sampled_from(PRODUCE_VERSIONS))
    topics = [
        (
            topic_key(draw, version >= hot.PRODUCE_TOPIC_IDS),
            draw(st.lists(st.tuples(int32s, st.none() | st.binary(max_size=200)), max_size=3)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return version, hot.ProduceRequest(draw(st.none() | names), draw(int16s), draw(int32s), topics)  # type: ignore[arg-type]


def generic_produce_request(request: hot.ProduceRequest) -> generic_produce.ProduceRequest:
    return generic_produce.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            generic_produce.TopicProduceData(
                name=key if isinstance(key, str) else "",
                topic_id=Uuid(key) if isinstance(key, bytes) else Uuid(bytes(16)),
                partition_data=[
                    generic_produce.PartitionProduceData(index=index, records=batch)
                    for index, batch in partitions
                ],
            )
            for key, partitions in request.topics
        ],
    )


@given(produce_requests())
def test_a_produce_request_reads_as_the_codec_wrote_it(
    case: tuple[int, hot.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(b"??" + encode(generic_produce_request(request), version)))
    assert hot.read_produce(wire, 2, version) == request


@given(produce_requests(), st.data())
def test_a_cut_produce_request_is_a_violation_or_loses_only_tags(
    case: tuple[int, hot.ProduceRequest], data: st.DataObject
) -> None:
    version, request = case
    whole = encode(generic_produce_request(request), version)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolViolation):
        hot.read_produce(memoryview(bytearray(whole[:cut])), 0, version)


@given(st.binary(max_size=200), st.sampled_from(PRODUCE_VERSIONS))
def test_random_bytes_are_a_produce_request_or_a_violation(junk: bytes, version: int) -> None:
    with suppress(ProtocolViolation):
        hot.read_produce(memoryview(bytearray(junk)), 0, version)


@st.composite
def one_batch_requests(draw: st.DrawFn) -> tuple[int, hot.ProduceRequest]:
    """What most clients send, in the versions that are read the short way."""
    version = draw(st.sampled_from([v for v in PRODUCE_VERSIONS if v >= 7]))
    key = topic_key(draw, version >= hot.PRODUCE_TOPIC_IDS)
    batch = draw(st.binary(max_size=300))
    return version, hot.ProduceRequest(
        None,
        draw(int16s),
        draw(int32s),
        [(key, [(draw(int32s), batch)])],  # type: ignore[list-item]
    )


def as_request(found: tuple[hot.Address, memoryview]) -> hot.ProduceRequest:
    address, batch = found
    topics: list[tuple[hot.TopicKey, list[tuple[int, memoryview | None]]]] = [
        (address.key, [(address.partition, batch)])
    ]
    return hot.ProduceRequest(None, address.acks, address.timeout_ms, topics)


@given(one_batch_requests())
def test_a_request_with_one_batch_is_read_the_short_way(
    case: tuple[int, hot.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(b"??" + encode(generic_produce_request(request), version)))
    found = hot.read_addressed(wire, 2, version)
    assert found is not None
    assert as_request(found) == request


@given(produce_requests())
def test_the_short_way_leaves_every_other_request_alone(
    case: tuple[int, hot.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(encode(generic_produce_request(request), version)))
    found = hot.read_addressed(wire, 0, version)
    if found is not None:
        assert as_request(found) == request


@given(one_batch_requests(), st.data())
def test_the_short_way_never_sees_what_the_long_one_does_not(
    case: tuple[int, hot.ProduceRequest], data: st.DataObject
) -> None:
    """Any bytes changed, the end cut off: whatever one makes of it the other makes too."""
    version, request = case
    wire = bytearray(encode(generic_produce_request(request), version))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, min(len(wire) - 1, 60)))
        wire[at] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    view = memoryview(wire[: data.draw(st.integers(0, len(wire)))])
    found = hot.read_addressed(view, 0, version)
    if found is not None:
        assert as_request(found) == hot.read_produce(view, 0, version)


@pytest.mark.parametrize(
    "size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152]
)
@pytest.mark.parametrize("version", [v for v in PRODUCE_VERSIONS if v >= 7])
def test_a_batch_of_any_size_is_found_the_short_way(version: int, size: int) -> None:
    key = bytes(16) if version >= hot.PRODUCE_TOPIC_IDS else "orders"
    batch = memoryview(bytes(size))
    request = hot.ProduceRequest(None, 1, 30_000, [(key, [(0, batch)])])
    wire = memoryview(bytearray(encode(generic_produce_request(request), version)))
    found = hot.read_addressed(wire, 0, version)
    assert found is not None
    assert as_request(found) == request


@given(one_batch_requests(), int32s, int64s, int64s, int64s)
def test_an_address_answers_in_the_bytes_of_the_general_answer(
    case: tuple[int, hot.ProduceRequest],
    correlation_id: int,
    base_offset: int,
    append_time_ms: int,
    log_start_offset: int,
) -> None:
    version, request = case
    wire = memoryview(bytearray(encode(generic_produce_request(request), version)))
    found = hot.read_addressed(wire, 0, version)
    assert found is not None
    key, [(index, _)] = request.topics[0]
    numbers = (base_offset, append_time_ms, log_start_offset)
    result = hot.ProducedPartition(index, 0, *numbers)
    assert found[0].answer(correlation_id, *numbers) == hot.write_produced(
        correlation_id, version, [(key, [result])]
    )


@given(st.binary(max_size=200), st.sampled_from(FETCH_VERSIONS))
def test_random_bytes_are_a_fetch_request_or_a_violation(junk: bytes, version: int) -> None:
    with suppress(ProtocolViolation):
        hot.read_fetch(memoryview(bytearray(junk)), 0, version)


@given(
    st.sampled_from(PRODUCE_VERSIONS),
    int32s,
    st.lists(
        st.lists(
            st.builds(
                hot.ProducedPartition,
                int32s,
                int16s,
                int64s,
                int64s,
                int64s,
                st.none() | st.text(max_size=20),
            ),
            max_size=3,
        ),
        max_size=3,
    ),
    st.data(),
)
def test_a_produce_answer_has_the_codecs_bytes(
    version: int,
    correlation_id: int,
    partitions: list[list[hot.ProducedPartition]],
    data: st.DataObject,
) -> None:
    by_id = version >= hot.PRODUCE_TOPIC_IDS
    topics = [(data.draw(uuids if by_id else names), results) for results in partitions]
    response = generic_produce.ProduceResponse(
        responses=[
            generic_produce.TopicProduceResponse(
                name=key if isinstance(key, str) else "",
                topic_id=Uuid(key) if isinstance(key, bytes) else Uuid(bytes(16)),
                partition_responses=[
                    generic_produce.PartitionProduceResponse(
                        index=p.partition,
                        error_code=p.error_code,
                        base_offset=p.base_offset,
                        log_append_time_ms=p.append_time_ms,
                        log_start_offset=p.log_start_offset,
                        error_message=p.message,
                    )
                    for p in results
                ],
            )
            for key, results in topics
        ]
    )
    header = RequestHeader(ApiKey.PRODUCE, version, correlation_id, None)
    assert hot.write_produced(correlation_id, version, topics) == response_frame(header, response)


@st.composite
def fetch_requests(draw: st.DrawFn) -> tuple[int, hot.FetchRequest]:
    version = draw(st.sampled_from(FETCH_VERSIONS))
    by_id = version >= hot.FETCH_TOPIC_IDS
    partition = st.builds(
        hot.FetchPartition,
        int32s,
        int64s,
        int32s,
        int32s if version >= 9 else st.just(-1),
        int32s if version >= 12 else st.just(-1),
        int64s if version >= 5 else st.just(-1),
    )
    topics = [
        (topic_key(draw, by_id), draw(st.lists(partition, max_size=3)))
        for _ in range(draw(st.integers(0, 3)))
    ]
    forgotten = []
    session = (0, -1)
    if version >= 7:
        session = (draw(int32s), draw(int32s))
        forgotten = [
            (topic_key(draw, by_id), draw(st.lists(int32s, max_size=3)))
            for _ in range(draw(st.integers(0, 3)))
        ]
    return version, hot.FetchRequest(
        draw(int32s),
        draw(int32s),
        draw(int32s),
        draw(int32s),
        draw(st.integers(0, 1)),
        *session,
        topics,
        forgotten,
    )


def generic_fetch_request(version: int, request: hot.FetchRequest) -> generic_fetch.FetchRequest:
    def name(key: str | bytes) -> str:
        return key if isinstance(key, str) else ""

    def uuid(key: str | bytes) -> Uuid:
        return Uuid(key) if isinstance(key, bytes) else Uuid(bytes(16))

    return generic_fetch.FetchRequest(
        replica_id=request.replica_id,
        replica_state=generic_fetch.ReplicaState(replica_id=request.replica_id),
        max_wait_ms=request.wait_ms_max,
        min_bytes=request.bytes_min,
        max_bytes=request.bytes_max,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            generic_fetch.FetchTopic(
                topic=name(key),
                topic_id=uuid(key),
                partitions=[
                    generic_fetch.FetchPartition(
                        partition=p.partition,
                        current_leader_epoch=p.leader_epoch,
                        fetch_offset=p.offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=p.log_start_offset,
                        partition_max_bytes=p.bytes_max,
                        high_watermark=7,
                    )
                    for p in partitions
                ],
            )
            for key, partitions in request.topics
        ],
        forgotten_topics_data=[
            generic_fetch.ForgottenTopic(topic=name(key), topic_id=uuid(key), partitions=indexes)
            for key, indexes in request.forgotten
        ],
        rack_id="somewhere",
    )


@given(fetch_requests())
def test_a_fetch_request_reads_as_the_codec_wrote_it(case: tuple[int, hot.FetchRequest]) -> None:
    version, request = case
    wire = encode(generic_fetch_request(version, request), version)
    assert hot.read_fetch(memoryview(wire), 0, version) == request


@given(
    st.sampled_from(FETCH_VERSIONS),
    int32s,
    int16s,
    int32s,
    st.lists(
        st.lists(
            st.builds(
                hot.FetchedPartition,
                int32s,
                int16s,
                int64s,
                int64s,
                int64s,
                st.none() | st.lists(st.tuples(int64s, int64s), max_size=2),
                st.none() | st.tuples(st.integers(0, 9), st.integers(0, 99)),
                st.none() | st.builds(FakeRange, st.binary(min_size=1, max_size=200)),
            ),
            max_size=3,
        ),
        max_size=3,
    ),
    st.data(),
)
def test_a_fetch_answer_has_the_codecs_bytes(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    partitions: list[list[hot.FetchedPartition]],
    data: st.DataObject,
) -> None:
    by_id = version >= hot.FETCH_TOPIC_IDS
    topics = [(data.draw(uuids if by_id else names), results) for results in partitions]
    response = generic_fetch.FetchResponse(
        error_code=error_code,
        session_id=session_id,
        responses=[
            generic_fetch.FetchTopicResponse(
                topic=key if isinstance(key, str) else "",
                topic_id=Uuid(key) if isinstance(key, bytes) else Uuid(bytes(16)),
                partitions=[_generic_fetched(p) for p in results],
            )
            for key, results in topics
        ],
    )
    header = RequestHeader(ApiKey.FETCH, version, correlation_id, None)
    parts = hot.write_fetched(
        correlation_id, version, topics, error_code=error_code, session_id=session_id
    )
    sent = b"".join(part.content if isinstance(part, FakeRange) else part for part in parts)  # type: ignore[misc]
    assert sent == response_frame(header, response)


def _generic_fetched(p: hot.FetchedPartition) -> generic_fetch.FetchPartitionResponse:
    diverging = generic_fetch.EpochEndOffset()
    if p.diverging is not None:
        diverging = generic_fetch.EpochEndOffset(epoch=p.diverging[0], end_offset=p.diverging[1])
    return generic_fetch.FetchPartitionResponse(
        partition_index=p.partition,
        error_code=p.error_code,
        high_watermark=p.high_watermark,
        last_stable_offset=p.last_stable_offset,
        log_start_offset=p.log_start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None
        if p.aborted is None
        else [
            generic_fetch.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in p.aborted
        ],
        records=p.records.content if isinstance(p.records, FakeRange) else b"",
    )
