"""Fetch by hand is held to the bytes of the generic codec."""

from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol import hot_fetch
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import encode
from ottla.protocol.hot_fields import LeaderHint, TopicKey
from ottla.protocol.messages import fetch as generic_fetch

FETCH_VERSIONS = list(APIS[ApiKey.FETCH].versions)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=20)
uuids = st.binary(min_size=16, max_size=16)
hints = st.builds(LeaderHint, st.integers(0, 9), int32s, names, int32s, st.none() | names)


@dataclass(frozen=True)
class FakeRange:
    """Stands for a range of a segment file: bytes that are sent, not read."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)


def topic_keys(*, by_id: bool) -> st.SearchStrategy[TopicKey]:
    return uuids if by_id else names


@given(st.binary(max_size=200), st.sampled_from(FETCH_VERSIONS))
def test_random_bytes_are_a_fetch_request_or_a_violation(junk: bytes, version: int) -> None:
    with suppress(ProtocolViolation):
        hot_fetch.read_fetch(memoryview(bytearray(junk)), 0, version)


@st.composite
def fetch_requests(draw: st.DrawFn) -> tuple[int, hot_fetch.FetchRequest]:
    version = draw(st.sampled_from(FETCH_VERSIONS))
    by_id = version >= hot_fetch.FETCH_TOPIC_IDS
    partition = st.builds(
        hot_fetch.FetchPartition,
        int32s,
        int64s,
        int32s,
        int32s if version >= 9 else st.just(-1),
        int32s if version >= 12 else st.just(-1),
        int64s if version >= 5 else st.just(-1),
        int64s if version >= 18 else st.just(hot_fetch.NO_WATERMARK),
    )
    topics = [
        (draw(topic_keys(by_id=by_id)), draw(st.lists(partition, max_size=3)))
        for _ in range(draw(st.integers(0, 3)))
    ]
    forgotten = []
    session = (0, -1)
    if version >= 7:
        session = (draw(int32s), draw(int32s))
        forgotten = [
            (draw(topic_keys(by_id=by_id)), draw(st.lists(int32s, max_size=3)))
            for _ in range(draw(st.integers(0, 3)))
        ]
    return version, hot_fetch.FetchRequest(
        draw(int32s),
        draw(int32s),
        draw(int32s),
        draw(int32s),
        draw(st.integers(0, 1)),
        *session,
        topics,
        forgotten,
        rack=draw(names) if version >= hot_fetch.FETCH_RACKS else "",
    )


def generic_fetch_request(
    version: int, request: hot_fetch.FetchRequest
) -> generic_fetch.FetchRequest:
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
                        high_watermark=p.high_watermark,
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
        rack_id=request.rack or "",
    )


@given(fetch_requests())
def test_a_fetch_request_reads_as_the_codec_wrote_it(
    case: tuple[int, hot_fetch.FetchRequest],
) -> None:
    version, request = case
    wire = encode(generic_fetch_request(version, request), version)
    assert hot_fetch.read_fetch(memoryview(wire), 0, version) == request


@given(int64s, names)
def test_a_followers_watermark_and_a_consumers_rack_are_read(watermark: int, rack: str) -> None:
    partition = hot_fetch.FetchPartition(3, 7, 100, high_watermark=watermark)
    request = hot_fetch.FetchRequest(
        -1, 1, 2, 3, 0, 0, -1, [(bytes(16), [partition])], [], rack=rack
    )
    wire = encode(generic_fetch_request(18, request), 18)
    assert hot_fetch.read_fetch(memoryview(wire), 0, 18) == request


@given(
    st.sampled_from(FETCH_VERSIONS),
    int32s,
    int16s,
    int32s,
    st.lists(
        st.lists(
            st.builds(
                hot_fetch.FetchedPartition,
                int32s,
                int16s,
                int64s,
                int64s,
                int64s,
                st.none() | st.lists(st.tuples(int64s, int64s), max_size=2),
                st.none() | st.tuples(st.integers(0, 9), st.integers(0, 99)),
                st.none() | st.builds(FakeRange, st.binary(min_size=1, max_size=200)),
                st.none() | hints,
                int32s,
            ),
            max_size=3,
        ),
        max_size=3,
    ),
    st.data(),
)
def test_a_fetch_response_has_the_codecs_bytes(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    partitions: list[list[hot_fetch.FetchedPartition[FakeRange]]],
    data: st.DataObject,
) -> None:
    by_id = version >= hot_fetch.FETCH_TOPIC_IDS
    topics = [(data.draw(topic_keys(by_id=by_id)), results) for results in partitions]
    response = generic_fetch.FetchResponse(
        error_code=error_code,
        session_id=session_id,
        responses=[
            generic_fetch.FetchTopicResponse(
                topic=key if isinstance(key, str) else "",
                topic_id=Uuid(key) if isinstance(key, bytes) else Uuid(bytes(16)),
                partitions=[_generic_fetched(version, p) for p in results],
            )
            for key, results in topics
        ],
        node_endpoints=_generic_endpoints(version, partitions),
    )
    header = RequestHeader(ApiKey.FETCH, version, correlation_id, None)
    parts = hot_fetch.write_fetched(
        correlation_id, version, topics, error_code=error_code, session_id=session_id
    )
    sent = b"".join(part.content if isinstance(part, FakeRange) else part for part in parts)
    assert sent == response_frame(header, response)


def _generic_endpoints(
    version: int, partitions: list[list[hot_fetch.FetchedPartition[FakeRange]]]
) -> list[generic_fetch.NodeEndpoint]:
    named = [p.leader for results in partitions for p in results if p.leader is not None]
    by_id = {hint.broker_id: hint for hint in named if version >= 16}
    return [
        generic_fetch.NodeEndpoint(
            node_id=hint.broker_id, host=hint.host, port=hint.port, rack=hint.rack
        )
        for hint in by_id.values()
    ]


def _generic_fetched(
    version: int, p: hot_fetch.FetchedPartition[FakeRange]
) -> generic_fetch.FetchPartitionResponse:
    leader = generic_fetch.LeaderIdAndEpoch()
    if p.leader is not None and version >= 16:
        leader = generic_fetch.LeaderIdAndEpoch(
            leader_id=p.leader.broker_id, leader_epoch=p.leader.epoch
        )
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
        current_leader=leader,
        aborted_transactions=None
        if p.aborted is None
        else [
            generic_fetch.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in p.aborted
        ],
        preferred_read_replica=p.preferred,
        records=b"" if p.records is None else p.records.content,
    )
