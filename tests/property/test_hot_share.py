"""ShareFetch by hand is held to the bytes of the generic codec."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import decode, encode
from ottla.protocol.hot_share import SingleShareFetch, SingleShareFetched, read_single
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    AcquiredRecords,
    LeaderIdAndEpoch,
    ShareFetchPartition,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareFetchTopicResponse,
    ShareForgottenTopic,
)

VERSIONS = list(APIS[ApiKey.SHARE_FETCH].versions)
MODES_MIN = 2

int8s = st.integers(-(2**7), 2**7 - 1)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
versions = st.sampled_from(VERSIONS)
uuids = st.binary(min_size=16, max_size=16).map(Uuid)
names = st.text(min_size=1, max_size=20)
batches = st.builds(
    AcknowledgementBatch,
    first_offset=int64s,
    last_offset=int64s,
    acknowledge_types=st.lists(int8s, max_size=2) | st.tuples(int8s).map(list),
    retry_delay_ms=st.just(-1) | int32s,
    is_uncounted=st.booleans(),
    reason=st.just("") | names,
)
partitions = st.builds(
    ShareFetchPartition,
    partition_index=int32s,
    acknowledgement_batches=st.lists(batches, max_size=2),
)
topics = st.builds(
    ShareFetchTopic, topic_id=uuids, partitions=st.lists(partitions, min_size=1, max_size=2)
)
forgotten = st.builds(ShareForgottenTopic, topic_id=uuids, partitions=st.lists(int32s, max_size=2))


def requests(*, group_ids: st.SearchStrategy[str | None]) -> st.SearchStrategy[ShareFetchRequest]:
    return st.builds(
        ShareFetchRequest,
        group_id=group_ids,
        member_id=group_ids,
        share_session_epoch=int32s,
        max_wait_ms=int32s,
        min_bytes=int32s,
        max_bytes=int32s,
        max_records=int32s,
        batch_size=int32s,
        share_acquire_mode=int8s,
        is_renew_ack=st.sampled_from([False, False, True]),
        topics=st.lists(topics, min_size=1, max_size=2) | st.tuples(topics).map(list),
        forgotten_topics_data=st.just([]) | st.lists(forgotten, max_size=1),
    )


@st.composite
def single_requests(draw: st.DrawFn) -> ShareFetchRequest:
    """A request that is read by hand in every version."""
    request = draw(requests(group_ids=names))
    said = [
        AcknowledgementBatch(
            first_offset=draw(int64s), last_offset=draw(int64s), acknowledge_types=[draw(int8s)]
        )
        for _ in range(draw(st.integers(0, 1)))
    ]
    partition = ShareFetchPartition(partition_index=draw(int32s), acknowledgement_batches=said)
    request.topics = [ShareFetchTopic(topic_id=draw(uuids), partitions=[partition])]
    request.forgotten_topics_data = []
    request.is_renew_ack = False
    return request


def single_of(request: ShareFetchRequest, version: int) -> SingleShareFetch | None:
    """The request as it is read by hand; None if it says more than that can hold."""
    said = [p.acknowledgement_batches for t in request.topics for p in t.partitions]
    if (
        len(said) != 1
        or len(said[0]) > 1
        or request.forgotten_topics_data
        or (version >= MODES_MIN and request.is_renew_ack)
    ):
        return None
    for batch in said[0]:
        has_tags = batch.retry_delay_ms != -1 or batch.is_uncounted or batch.reason
        if has_tags or len(batch.acknowledge_types) != 1:
            return None
    assert request.group_id is not None
    assert request.member_id is not None
    return SingleShareFetch(
        request.group_id,
        request.member_id,
        request.share_session_epoch,
        request.max_wait_ms,
        request.max_bytes,
        request.max_records,
        request.share_acquire_mode if version >= MODES_MIN else 0,
        request.topics[0].topic_id,
        request.topics[0].partitions[0].partition_index,
        (said[0][0].first_offset, said[0][0].last_offset, said[0][0].acknowledge_types[0])
        if said[0]
        else None,
    )


def wire_of(request: ShareFetchRequest, version: int) -> memoryview:
    return memoryview(bytearray(b"??" + encode(request, version)))


@given(single_requests(), versions)
def test_a_request_of_one_partition_is_read_by_hand(
    request: ShareFetchRequest, version: int
) -> None:
    found = read_single(wire_of(request, version), 2, version)
    assert found is not None
    assert found == single_of(request, version)


@given(single_requests())
def test_a_request_that_renews_is_left_to_the_codec(request: ShareFetchRequest) -> None:
    request.is_renew_ack = True
    assert read_single(wire_of(request, MODES_MIN), 2, MODES_MIN) is None


@given(
    single_requests(),
    st.sampled_from(["types", "tags", "batches", "partitions", "topics", "forgotten"]),
    versions,
)
def test_a_request_that_says_more_is_left_to_the_codec(
    request: ShareFetchRequest, more: str, version: int
) -> None:
    (topic,) = request.topics
    (partition,) = topic.partitions
    batch = AcknowledgementBatch(first_offset=1, last_offset=2, acknowledge_types=[1])
    match more:
        case "types":
            batch.acknowledge_types = [1, 2]
            partition.acknowledgement_batches = [batch]
        case "tags":
            batch.retry_delay_ms = 5
            partition.acknowledgement_batches = [batch]
        case "batches":
            partition.acknowledgement_batches = [batch, batch]
        case "partitions":
            topic.partitions.append(ShareFetchPartition())
        case "topics":
            request.topics.append(ShareFetchTopic())
        case _:
            request.forgotten_topics_data = [ShareForgottenTopic(partitions=[1])]
    assert read_single(wire_of(request, version), 2, version) is None


@given(requests(group_ids=names), versions)
def test_a_request_is_read_as_the_codec_wrote_it_or_left_to_it(
    request: ShareFetchRequest, version: int
) -> None:
    assert read_single(wire_of(request, version), 2, version) == single_of(request, version)


@given(
    requests(group_ids=st.sampled_from([None, "", "g", "g" * 126, "g" * 127, "é" * 63])), versions
)
def test_names_that_are_missing_or_long_are_left_to_the_codec(
    request: ShareFetchRequest, version: int
) -> None:
    found = read_single(wire_of(request, version), 2, version)
    if found is not None:
        assert found == single_of(request, version)


@given(single_requests(), versions, st.data())
def test_what_is_read_by_hand_is_what_the_codec_reads(
    request: ShareFetchRequest, version: int, data: st.DataObject
) -> None:
    """Damaged requests too: one that is cut, or has another byte somewhere."""
    wire = bytearray(encode(request, version))
    del wire[data.draw(st.integers(0, len(wire))) :]
    for _ in range(data.draw(st.integers(0, 2)) if wire else 0):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    found = read_single(memoryview(wire), 0, version)
    if found is not None:
        assert found == single_of(decode(ShareFetchRequest, version, wire), version)


@given(st.binary(max_size=200), versions)
def test_random_bytes_are_left_to_the_codec(junk: bytes, version: int) -> None:
    found = read_single(memoryview(bytearray(junk)), 0, version)
    if found is not None:
        with suppress(ProtocolViolation):
            assert found == single_of(decode(ShareFetchRequest, version, junk), version)


@given(
    int32s,
    versions,
    int32s,
    uuids,
    int32s,
    st.binary(max_size=300),
    st.lists(st.tuples(int64s, int64s, int16s), max_size=3),
)
def test_a_response_about_one_partition_has_the_bytes_of_the_codec(
    correlation_id: int,
    version: int,
    lock_ms: int,
    topic_id: Uuid,
    index: int,
    records: bytes,
    acquired: list[tuple[int, int, int]],
) -> None:
    partition = ShareFetchPartitionResponse(
        partition_index=index,
        current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
        records=records,
        acquired_records=[
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in acquired
        ],
    )
    response = ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=[ShareFetchTopicResponse(topic_id=topic_id, partitions=[partition])],
    )
    header = RequestHeader(ApiKey.SHARE_FETCH, version, correlation_id, None)
    by_hand = SingleShareFetched(lock_ms, topic_id, index, records, acquired)
    assert by_hand.frame(correlation_id) == bytes(response_frame(header, response))


@pytest.mark.parametrize("records_bytes", [126, 127, 16_382, 16_383, 2**21 - 2, 2**21 - 1])
def test_records_of_any_size_have_the_length_that_the_codec_writes(records_bytes: int) -> None:
    response = ShareFetchResponse(
        responses=[
            ShareFetchTopicResponse(
                partitions=[
                    ShareFetchPartitionResponse(
                        current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
                        records=bytes(records_bytes),
                    )
                ]
            )
        ]
    )
    header = RequestHeader(ApiKey.SHARE_FETCH, 1, 1, None)
    by_hand = SingleShareFetched(0, Uuid(bytes(16)), 0, bytes(records_bytes), ())
    assert by_hand.frame(1) == bytes(response_frame(header, response))
