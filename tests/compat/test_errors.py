"""Every refusal of Produce, Fetch and ListOffsets that a connection can bring about."""

import struct

import pytest

from compat.adapter import MakeTopic, wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import (
    batch,
    delete_topic,
    fetch,
    fetch_request,
    fetched,
    list_offset,
    produce,
    produce_request,
    resealed,
    topic_id,
    want,
)
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, Sequence, TimestampMs, Uuid
from ottla.protocol.api import ApiKey, RequestHeader, request_frame
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import ForgottenTopic
from ottla.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.records.batch import Record, build_batch
from ottla.records.compression import Codec

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NO_SUCH_ID = Uuid(b"\x07" * 16)


def idempotent(
    sequence: int, *, producer: int = 7_000_000, epoch: int = 0, count: int = 1
) -> bytes:
    return batch(
        *([b"i"] * count),
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=Sequence(sequence),
    )


# Produce


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_mean_nothing_are_refused(
    raw: RawConnection, make_topic: MakeTopic, acks: int
) -> None:
    told = produce(raw, make_topic(), batch(), acks=acks)
    assert told.error_code == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_is_answered(
    raw: RawConnection, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic()
    assert produce(raw, topic, batch(b"1", b"2"), version=version).base_offset == 0
    told = produce(raw, topic, batch(b"3"), version=version)
    assert (told.error_code, told.base_offset, told.log_append_time_ms) == (0, 2, -1)


@pytest.mark.parametrize("version", range(3))
def test_the_oldest_versions_of_produce_close_the_connection(
    raw: RawConnection, version: int
) -> None:
    raw.write(struct.pack(">ihhih", 16, 0, version, 1, -1) + bytes(6))
    assert raw.is_closed_by_broker()


def test_a_batch_with_a_wrong_checksum_is_corrupt(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    damaged = bytearray(batch(b"value"))
    damaged[-2] ^= 1
    assert produce(raw, topic, bytes(damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert produce(raw, topic, batch(b"intact")).base_offset == 0


def test_what_is_not_exactly_one_batch_is_refused(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    assert produce(raw, topic, batch() * 2).error_code == ErrorCode.INVALID_RECORD
    assert produce(raw, topic, None).error_code == ErrorCode.INVALID_RECORD
    assert produce(raw, topic, b"").error_code == ErrorCode.INVALID_RECORD
    old_format = bytearray(batch())
    old_format[16] = 1
    assert produce(raw, topic, bytes(old_format)).error_code == ErrorCode.INVALID_RECORD
    control = bytes(build_batch([Record(key=bytes(4), value=bytes(6))], is_control=True))
    assert produce(raw, topic, control).error_code == ErrorCode.INVALID_RECORD
    told = produce(raw, topic, batch() * 2, version=8)
    assert told.error_message


def test_zstd_needs_version_seven(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    packed = batch(b"z" * 1000, codec=Codec.ZSTD)
    told = produce(raw, topic, packed, version=6)
    assert told.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(raw, topic, packed, version=7).base_offset == 0


def test_a_codec_that_nobody_knows_is_refused(raw: RawConnection, make_topic: MakeTopic) -> None:
    unknown = bytearray(batch(b"value"))
    unknown[22] |= 6
    told = produce(raw, make_topic(), resealed(unknown))
    assert told.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_producer_may_not_speak_in_the_brokers_time(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    pretending = bytearray(batch(b"value"))
    pretending[22] |= 8  # the attribute that marks LogAppendTime
    told = produce(raw, make_topic(), resealed(pretending))
    assert told.error_code == ErrorCode.INVALID_TIMESTAMP


def test_a_repeated_batch_is_answered_with_its_old_time(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    first = produce(raw, topic, idempotent(0)).log_append_time_ms
    wait_until(lambda: SystemClock().now_ms() > first, "the clock goes on")
    assert produce(raw, topic, idempotent(0)).log_append_time_ms == first


def test_a_batch_over_the_limit_is_too_large(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes=1000)
    assert produce(raw, topic, batch(b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(raw, topic, batch(b"x" * 500)).base_offset == 0


def test_partitions_and_ids_that_are_not_there_are_unknown(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(raw, "no-such-topic", batch()).error_code == unknown
    assert produce(raw, topic, batch(), partition=1).error_code == unknown
    assert produce(raw, topic, batch(), partition=-1).error_code == unknown
    told = produce(raw, NO_SUCH_ID, batch(), version=13)
    assert told.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(raw, topic_id(raw, topic), batch(), version=13).base_offset == 0


def test_one_bad_partition_does_not_spoil_the_others(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    request = produce_request(topic, batch())
    request.topic_data += produce_request("no-such-topic", batch()).topic_data
    answer = raw.ask(request, 12)
    codes = [one.partition_responses[0].error_code for one in answer.responses]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_repeated_batch_is_answered_with_its_old_offset(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    offsets = [produce(raw, topic, idempotent(n * 3, count=3)).base_offset for n in range(6)]
    assert offsets == [0, 3, 6, 9, 12, 15]
    for number in range(1, 6):  # the last five are remembered
        told = produce(raw, topic, idempotent(number * 3, count=3))
        assert (told.error_code, told.base_offset) == (0, number * 3)
    assert list_offset(raw, topic, LATEST).offset == 18


def test_a_gap_in_a_producers_sequence_is_refused(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(raw, topic, idempotent(0))
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(raw, topic, idempotent(2)).error_code == out_of_order
    assert produce(raw, topic, idempotent(1)).base_offset == 1
    assert produce(raw, topic, idempotent(5, epoch=1)).error_code == out_of_order


def test_sequences_begin_again_after_the_largest(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(raw, topic, idempotent(2**31 - 2, count=3))  # the first of an unknown producer
    assert produce(raw, topic, idempotent(1)).base_offset == 3


def test_a_producer_that_was_replaced_is_refused(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(raw, topic, idempotent(0, epoch=3))
    assert produce(raw, topic, idempotent(1, epoch=2)).error_code == (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert produce(raw, topic, idempotent(0, epoch=4)).base_offset == 1


def test_more_producers_than_a_topic_allows_are_refused_and_the_others_go_on(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_producers=3)
    for producer in range(3):
        assert produce(raw, topic, idempotent(0, producer=producer)).error_code == 0
    told = produce(raw, topic, idempotent(0, producer=3))
    assert told.error_code == ErrorCode.POLICY_VIOLATION
    assert "max.producers" in (told.error_message or "")
    assert produce(raw, topic, idempotent(1, producer=0)).error_code == 0
    assert produce(raw, topic, batch()).error_code == 0, "who has no id needs no room"


def test_a_transactional_batch_belongs_to_a_transactional_id(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    transactional = batch(
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        base_sequence=Sequence(0),
        is_transactional=True,
    )
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert produce(raw, topic, transactional).error_code == refused
    plain = produce(raw, topic, batch(), transactional_id="t")
    assert plain.error_code == ErrorCode.NONE, "the batch itself is not part of a transaction"


def test_too_few_replicas_are_enough_for_what_a_topic_can_have(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    # One broker, one replica: min.insync.replicas asks for what there is.
    assert produce(raw, make_topic(min_insync_replicas=2), batch()).error_code == 0


def test_a_failed_produce_without_acknowledgement_closes_the_connection(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    raw.tell(produce_request(topic, batch(), acks=0), 9)
    assert produce(raw, topic, batch()).base_offset == 1  # nothing was said in between
    raw.tell(produce_request("no-such-topic", batch(), acks=0), 9)
    assert raw.is_closed_by_broker()


def test_requests_in_flight_are_answered_in_order(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    for _ in range(100):
        raw.tell(produce_request(topic, batch()), 9)
    raw.tell(fetch_request({topic: [want(offset=100)]}, max_wait_ms=10), 12)
    raw.tell(produce_request(topic, batch()), 9)
    offsets = [
        raw.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].base_offset
        for _ in range(100)
    ]
    assert offsets == list(range(100))
    assert (topic, 0) in fetched(raw.answer(ApiKey.FETCH, 12))
    last = raw.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
    assert last.base_offset == 100


# Fetch


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch_is_answered(
    raw: RawConnection, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic()
    produce(raw, topic, batch(b"value"))
    found = fetch(raw, topic, version=version)
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert found.records is not None
    assert bytes(found.records).endswith(b"value\x00")


@pytest.mark.parametrize("version", range(13, 19))
def test_every_version_of_fetch_by_id_is_answered(
    raw: RawConnection, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic()
    produce(raw, topic, batch(b"value"))
    found = fetch(raw, topic_id(raw, topic), version=version)
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert fetch(raw, NO_SUCH_ID, version=version).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_fetches_of_what_is_not_there_are_refused(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(raw, topic, batch())
    assert fetch(raw, "no-such-topic").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(raw, topic, partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(raw, topic, offset=2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(raw, topic, offset=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(raw, topic, offset=1).error_code == ErrorCode.NONE


def test_leader_epochs_are_compared(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(raw, topic, batch())
    epoch = list_offset(raw, topic, LATEST).leader_epoch
    assert epoch >= 0
    too_new = epoch + 1
    assert fetch(raw, topic, current_leader_epoch=epoch).error_code == 0
    assert fetch(raw, topic, current_leader_epoch=too_new).error_code == (
        ErrorCode.UNKNOWN_LEADER_EPOCH
    )
    assert list_offset(raw, topic, LATEST, leader_epoch=too_new).error_code == (
        ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def test_only_brokers_fetch_as_replicas(raw: RawConnection, make_topic: MakeTopic) -> None:
    found = fetch(raw, make_topic(), replica_id=1)
    assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_the_first_batch_is_sent_however_large(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    large = batch(b"x" * 10_000)
    for partition in (0, 1):
        produce(raw, topic, large, partition=partition)
        produce(raw, topic, large, partition=partition)
    request = fetch_request(
        {topic: [want(0, partition_max_bytes=1), want(1, partition_max_bytes=1)]}, max_bytes=1
    )
    found = fetched(raw.ask(request, 12))
    assert len(found[topic, 0].records or b"") == len(large)
    assert not found[topic, 1].records


def test_a_fetch_keeps_to_its_limits(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    one = batch(b"x" * 1000)
    for partition in (0, 1):
        for _ in range(5):
            produce(raw, topic, one, partition=partition)
    request = fetch_request(
        {topic: [want(0, partition_max_bytes=3 * len(one) + 10), want(1)]}, max_bytes=5 * len(one)
    )
    found = fetched(raw.ask(request, 12))
    assert len(found[topic, 0].records or b"") == 3 * len(one)
    assert len(found[topic, 1].records or b"") == 2 * len(one)


def test_committed_reading_says_which_transactions_were_aborted(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(raw, topic, batch())
    request = fetch_request({topic: [want()]}, isolation_level=1)
    found = fetched(raw.ask(request, 12))[topic, 0]
    assert found.aborted_transactions == []
    assert found.last_stable_offset == found.high_watermark == 1


# Sessions


def test_a_session_tells_only_what_is_new(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    first = raw.ask(fetch_request({topic: [want(p) for p in range(3)]}, session=(0, 0)), 12)
    assert first.session_id > 0
    assert len(fetched(first)) == 3
    produce(raw, topic, batch(), partition=1)
    second = raw.ask(fetch_request({}, session=(first.session_id, 1)), 12)
    assert set(fetched(second)) == {(topic, 1)}
    assert fetched(second)[topic, 1].records
    third = raw.ask(fetch_request({topic: [want(1, 1)]}, session=(first.session_id, 2)), 12)
    assert not fetched(third)
    forgotten = ForgottenTopic(topic=topic, partitions=[2])
    request = fetch_request({}, session=(first.session_id, 3), forgotten_topics_data=[forgotten])
    assert not fetched(raw.ask(request, 12))
    produce(raw, topic, batch(), partition=2)
    fifth = raw.ask(fetch_request({}, session=(first.session_id, 4)), 12)
    assert not fetched(fifth)


def test_sessions_that_are_not_right_are_refused(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()

    def asked(session: tuple[int, int], version: int = 12) -> int:
        return int(raw.ask(fetch_request({}, session=session), version).error_code)

    unknown = 123_456_789
    assert asked((unknown, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    opened = raw.ask(fetch_request({topic: [want()]}, session=(0, 0)), 12).session_id
    assert asked((opened, 5)) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert asked((opened, 1), version=13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert asked((opened, 1)) == ErrorCode.NONE
    assert asked((opened, -1)) == ErrorCode.NONE  # closes it
    assert asked((opened, 2)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_replaces_a_session(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    first = raw.ask(fetch_request({topic: [want()]}, session=(0, 0)), 12)
    second = raw.ask(fetch_request({topic: [want()]}, session=(first.session_id, 0)), 12)
    assert second.session_id not in {0, first.session_id}
    gone = raw.ask(fetch_request({}, session=(first.session_id, 1)), 12)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_tells_of_a_topic_that_has_gone(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    wanted = topic_id(raw, topic)
    first = raw.ask(fetch_request({wanted: [want()]}, session=(0, 0)), 13)
    delete_topic(raw, topic)
    second = raw.ask(fetch_request({}, session=(first.session_id, 1)), 13)
    (told,) = second.responses[0].partitions
    assert told.error_code == ErrorCode.UNKNOWN_TOPIC_ID


# ListOffsets and OffsetForLeaderEpoch


def timed(timestamp_ms: int) -> bytes:
    return bytes(build_batch([Record(value=b"x", timestamp_ms=TimestampMs(timestamp_ms))]))


def test_offsets_are_listed_by_time_and_by_special_values(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(retention_ms=-1)
    for timestamp_ms in (1000, 3000, 2000):
        produce(raw, topic, timed(timestamp_ms))
    assert list_offset(raw, topic, LATEST).offset == 3
    assert list_offset(raw, topic, LATEST, isolation_level=1).offset == 3
    assert list_offset(raw, topic, EARLIEST).offset == 0
    for version in range(7, 12):
        found = list_offset(raw, topic, MAX_TIMESTAMP, version=version)
        assert (found.offset, found.timestamp) == (1, 3000)
    assert list_offset(raw, topic, -4, version=8).offset == 0
    assert list_offset(raw, topic, -5, version=9).offset == -1
    assert list_offset(raw, topic, -6, version=11).offset == -1
    for version in range(1, 12):
        found = list_offset(raw, topic, 1500, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (0, 1, 3000)
        found = list_offset(raw, topic, 9000, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


def test_an_empty_topic_has_offsets_too(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    assert list_offset(raw, topic, LATEST).offset == 0
    assert list_offset(raw, topic, EARLIEST).offset == 0
    assert list_offset(raw, topic, MAX_TIMESTAMP).offset == -1
    assert list_offset(raw, topic, 0).offset == -1


@pytest.mark.parametrize(
    ("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-(2**63), 11)]
)
def test_special_values_from_the_future_are_refused(
    raw: RawConnection, make_topic: MakeTopic, timestamp: int, version: int
) -> None:
    found = list_offset(raw, make_topic(), timestamp, version=version)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_offsets_of_what_is_not_there_are_refused(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(raw, "no-such-topic", LATEST).error_code == unknown
    assert list_offset(raw, make_topic(), LATEST, partition=3).error_code == unknown


def test_a_time_cannot_be_found_in_records_that_cannot_be_read(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(retention_ms=-1)
    garbage = bytearray(timed(1000) + b"not gzip at all")
    garbage[22] |= Codec.GZIP
    assert produce(raw, topic, resealed(garbage)).error_code in {0, ErrorCode.INVALID_RECORD}
    found = list_offset(raw, topic, 500)
    assert found.error_code in {ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}
    assert list_offset(raw, topic, LATEST).error_code == 0


def test_the_end_of_an_epoch_is_told(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(raw, topic, batch(b"1", b"2"))
    epoch = list_offset(raw, topic, LATEST).leader_epoch

    def asked(leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
        wanted = OffsetForLeaderPartition(
            partition=0, leader_epoch=leader_epoch, current_leader_epoch=current
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
        )
        (found,) = raw.ask(request, 4).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert asked(epoch) == (0, epoch, 2)
    assert asked(epoch, current=epoch + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


# Everything else that a connection can say


def test_api_versions_from_the_future_are_answered_with_the_list(raw: RawConnection) -> None:
    raw.write(struct.pack(">ihhihb", 11, ApiKey.API_VERSIONS, 99, 1, -1, 0))
    frame = raw.read_frame()
    correlation_id, code, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, code) == (1, ErrorCode.UNSUPPORTED_VERSION)
    assert count > 10


def test_nameless_software_is_an_invalid_request(raw: RawConnection) -> None:
    nameless = ApiVersionsRequest(client_software_name="", client_software_version="1")
    answer: ApiVersionsResponse = raw.ask(nameless, 3)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_what_is_not_listed_closes_the_connection(raw: RawConnection) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    listed = {one.api_key for one in raw.ask(request, 4).api_keys}
    unlisted = next(key for key in ApiKey if key not in listed)
    raw.write(struct.pack(">ihhih", 10, unlisted, 0, 1, -1))
    assert raw.is_closed_by_broker()


def test_producer_ids_are_given_once_and_epochs_rise(
    raw: RawConnection, broker: ServedBroker
) -> None:
    fresh = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with connected(broker.address) as other:
        ids = {one.ask(fresh, 5).producer_id for one in (raw, other) for _ in range(10)}
    assert len(ids) == 20
    known = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=max(ids), producer_epoch=4
    )
    answer = raw.ask(known, 5)
    assert (answer.producer_id, answer.producer_epoch) == (max(ids), 5)


def test_bytes_behind_a_request_are_ignored(raw: RawConnection, make_topic: MakeTopic) -> None:
    topic = make_topic()
    header = RequestHeader(ApiKey.FETCH, 12, 1, "raw")
    frame = request_frame(header, fetch_request({topic: [want()]})) + b"\x00\x00\x00"
    frame[:4] = struct.pack(">i", len(frame) - 4)
    raw.write(bytes(frame))
    assert (topic, 0) in fetched(raw.answer(ApiKey.FETCH, 12))
