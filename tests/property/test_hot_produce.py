"""Produce by hand is held to the bytes of the generic codec."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ProtocolViolation, RecordError
from ottla.model import Uuid
from ottla.protocol import hot_produce
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import encode
from ottla.protocol.hot_fields import LeaderHint, TopicKey
from ottla.protocol.messages import produce as generic_produce

PRODUCE_VERSIONS = list(APIS[ApiKey.PRODUCE].versions)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20)
uuids = st.binary(min_size=16, max_size=16)
hints = st.builds(LeaderHint, st.integers(0, 9), int32s, names, int32s, st.none() | names)


def topic_keys(*, by_id: bool) -> st.SearchStrategy[TopicKey]:
    return uuids if by_id else names


def batches(bytes_max: int) -> st.SearchStrategy[memoryview]:
    return st.binary(max_size=bytes_max).map(memoryview)


@st.composite
def produce_requests(draw: st.DrawFn) -> tuple[int, hot_produce.ProduceRequest]:
    version = draw(st.sampled_from(PRODUCE_VERSIONS))
    topics = [
        (
            draw(topic_keys(by_id=version >= hot_produce.PRODUCE_TOPIC_IDS)),
            draw(st.lists(st.tuples(int32s, st.none() | batches(200)), max_size=3)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return version, hot_produce.ProduceRequest(
        draw(st.none() | names), draw(int16s), draw(int32s), topics
    )


def generic_produce_request(request: hot_produce.ProduceRequest) -> generic_produce.ProduceRequest:
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
    case: tuple[int, hot_produce.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(b"??" + encode(generic_produce_request(request), version)))
    assert hot_produce.read_produce(wire, 2, version) == request


@given(produce_requests(), st.data())
def test_a_cut_produce_request_is_a_violation_or_loses_only_tags(
    case: tuple[int, hot_produce.ProduceRequest], data: st.DataObject
) -> None:
    version, request = case
    whole = encode(generic_produce_request(request), version)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolViolation):
        hot_produce.read_produce(memoryview(bytearray(whole[:cut])), 0, version)


@given(st.binary(max_size=200), st.sampled_from(PRODUCE_VERSIONS))
def test_random_bytes_are_a_produce_request_or_a_violation(junk: bytes, version: int) -> None:
    with suppress(ProtocolViolation):
        hot_produce.read_produce(memoryview(bytearray(junk)), 0, version)


@st.composite
def one_batch_requests(draw: st.DrawFn) -> tuple[int, hot_produce.ProduceRequest]:
    """A request with a single batch, in the versions that are read the short way."""
    version = draw(st.sampled_from([v for v in PRODUCE_VERSIONS if v >= 7]))
    key = draw(topic_keys(by_id=version >= hot_produce.PRODUCE_TOPIC_IDS))
    return version, hot_produce.ProduceRequest(
        None,
        draw(int16s),
        draw(int32s),
        [(key, [(draw(int32s), draw(batches(300)))])],
    )


def as_request(found: tuple[hot_produce.ProduceTarget, memoryview]) -> hot_produce.ProduceRequest:
    target, batch = found
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = [
        (target.key, [(target.partition, batch)])
    ]
    return hot_produce.ProduceRequest(None, target.acks, target.timeout_ms, topics)


@given(one_batch_requests())
def test_a_request_with_one_batch_is_read_the_short_way(
    case: tuple[int, hot_produce.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(b"??" + encode(generic_produce_request(request), version)))
    found = hot_produce.read_single_batch(wire, 2, version)
    assert found is not None
    assert as_request(found) == request


@given(produce_requests())
def test_the_short_way_leaves_every_other_request_alone(
    case: tuple[int, hot_produce.ProduceRequest],
) -> None:
    version, request = case
    wire = memoryview(bytearray(encode(generic_produce_request(request), version)))
    found = hot_produce.read_single_batch(wire, 0, version)
    if found is not None:
        assert as_request(found) == request


@given(one_batch_requests(), st.data())
def test_the_short_way_never_sees_what_the_long_one_does_not(
    case: tuple[int, hot_produce.ProduceRequest], data: st.DataObject
) -> None:
    """Bytes changed, the end cut off: both ways return the same request."""
    version, request = case
    wire = bytearray(encode(generic_produce_request(request), version))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, min(len(wire) - 1, 60)))
        wire[at] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    view = memoryview(wire[: data.draw(st.integers(0, len(wire)))])
    found = hot_produce.read_single_batch(view, 0, version)
    if found is not None:
        assert as_request(found) == hot_produce.read_produce(view, 0, version)


@given(one_batch_requests(), int32s, int64s, int64s, int64s)
def test_a_targets_response_has_the_bytes_of_the_general_response(
    case: tuple[int, hot_produce.ProduceRequest],
    correlation_id: int,
    base_offset: int,
    append_time_ms: int,
    log_start_offset: int,
) -> None:
    version, request = case
    wire = memoryview(bytearray(encode(generic_produce_request(request), version)))
    found = hot_produce.read_single_batch(wire, 0, version)
    assert found is not None
    key, [(index, _)] = request.topics[0]
    numbers = (base_offset, append_time_ms, log_start_offset)
    result = hot_produce.ProducedPartition(index, 0, *numbers)
    assert found[0].response(correlation_id, *numbers) == hot_produce.write_produced(
        correlation_id, version, [(key, [result])]
    )


@given(
    st.sampled_from(PRODUCE_VERSIONS),
    int32s,
    st.lists(
        st.lists(
            st.builds(
                hot_produce.ProducedPartition,
                int32s,
                int16s,
                int64s,
                int64s,
                int64s,
                st.none(),
                st.just(()),
                st.none() | hints,
            )
            | st.builds(  # only an error with a text names records
                hot_produce.ProducedPartition,
                int32s,
                int16s,
                int64s,
                int64s,
                int64s,
                st.text(max_size=20),
                st.lists(st.builds(RecordError, int32s, st.text(max_size=20)), max_size=3),
                st.none() | hints,
            ),
            max_size=3,
        ),
        max_size=3,
    ),
    st.data(),
)
def test_a_produce_response_has_the_codecs_bytes(
    version: int,
    correlation_id: int,
    partitions: list[list[hot_produce.ProducedPartition]],
    data: st.DataObject,
) -> None:
    by_id = version >= hot_produce.PRODUCE_TOPIC_IDS
    topics = [(data.draw(topic_keys(by_id=by_id)), results) for results in partitions]
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
                        record_errors=[
                            generic_produce.BatchIndexAndErrorMessage(
                                batch_index=index, batch_index_error_message=text
                            )
                            for index, text in p.record_errors
                        ],
                        error_message=p.message,
                        current_leader=_generic_leader(version, p),
                    )
                    for p in results
                ],
            )
            for key, results in topics
        ],
        node_endpoints=_generic_endpoints(version, partitions),
    )
    header = RequestHeader(ApiKey.PRODUCE, version, correlation_id, None)
    assert hot_produce.write_produced(correlation_id, version, topics) == response_frame(
        header, response
    )


def _generic_leader(
    version: int, p: hot_produce.ProducedPartition
) -> generic_produce.LeaderIdAndEpoch:
    if p.leader is None or version < 10:
        return generic_produce.LeaderIdAndEpoch()
    return generic_produce.LeaderIdAndEpoch(
        leader_id=p.leader.broker_id, leader_epoch=p.leader.epoch
    )


def _generic_endpoints(
    version: int, partitions: list[list[hot_produce.ProducedPartition]]
) -> list[generic_produce.NodeEndpoint]:
    named = [p.leader for results in partitions for p in results if p.leader is not None]
    by_id = {hint.broker_id: hint for hint in named if version >= 10}
    return [
        generic_produce.NodeEndpoint(
            node_id=hint.broker_id, host=hint.host, port=hint.port, rack=hint.rack
        )
        for hint in by_id.values()
    ]
