"""Fetches that ask for everything, for ever, or in somebody else's name."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import build
from hostile.attacked_broker import MIB, AttackedBroker, attacked_broker
from hostile.control import served_throughout
from hostile.wire import (
    create_topic,
    fetch_request,
    produce_request,
    raw_client,
    request_bytes,
)
from ottla.errors import ErrorCode
from ottla.model import TopicPartition, Uuid
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

INT32_MAX = 2**31 - 1
MANY = 100_000


@pytest.fixture(scope="module")
def tp(broker: AttackedBroker) -> TopicPartition:
    """A partition with one record."""
    create_topic(broker, "fetched")
    wanted = TopicPartition("fetched", 0)
    with raw_client(broker) as client:
        client.ask(produce_request(wanted, bytes(build.batch())), 8)
    return wanted


def test_a_fetch_that_would_wait_for_ever_does_not_hold_up_anybody(
    broker: AttackedBroker, tp: TopicPartition, report: Callable[[str], None]
) -> None:
    wait = request_bytes(
        fetch_request(tp, 0, max_wait_ms=INT32_MAX, min_bytes=INT32_MAX, max_bytes=INT32_MAX),
        11,
    )
    with served_throughout(broker) as control:
        waiting = [broker.connect() for _ in range(100)]
        for one in waiting:
            one.sendall(wait)
        control.wait_round_trips(20)
        for one in waiting:
            one.close()
    report(control.figures())


def test_a_fetch_waits_no_longer_than_the_broker_allows(tmp_path: Path) -> None:
    with attacked_broker(tmp_path, "fetch.max.wait.ms=300") as broker:
        create_topic(broker, "empty")
        with raw_client(broker) as client:
            wait = fetch_request(
                TopicPartition("empty", 0), 0, max_wait_ms=INT32_MAX, min_bytes=INT32_MAX
            )
            answer = client.ask(wait, 11)  # within our patience, not in 24 days
            assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE


def test_negative_limits_are_answered_at_once(broker: AttackedBroker, tp: TopicPartition) -> None:
    with raw_client(broker) as client:
        for limit in (-1, -(2**31)):
            for name in ("max_wait_ms", "min_bytes", "max_bytes"):
                answer = client.ask(fetch_request(tp, 0, **{name: limit}), 11)
                assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("offset", [-1, 2**63 - 1, -(2**63), 10**9])
def test_offsets_out_of_range_are_told_so(
    broker: AttackedBroker, tp: TopicPartition, offset: int
) -> None:
    with raw_client(broker) as client:
        answer = client.ask(fetch_request(tp, offset), 11)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2**31 - 1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_leader_epochs_out_of_nowhere_are_refused(
    broker: AttackedBroker, tp: TopicPartition, epoch: int, code: ErrorCode
) -> None:
    request = fetch_request(tp, 0)
    request.topics[0].partitions[0].current_leader_epoch = epoch
    with raw_client(broker) as client:
        answer = client.ask(request, 11)
        assert answer.responses[0].partitions[0].error_code == code


def test_a_hundred_thousand_unknown_partitions_get_as_many_answers(
    broker: AttackedBroker,
) -> None:
    partitions = [FetchPartition(partition=n, partition_max_bytes=1) for n in range(MANY)]
    topic = FetchTopic(topic_id=Uuid(bytes(15) + b"x"), partitions=partitions)
    request = FetchRequest(
        max_wait_ms=INT32_MAX, min_bytes=INT32_MAX, session_epoch=0, topics=[topic]
    )
    with (
        served_throughout(broker),
        raw_client(broker) as client,
        broker.memory_grows_less_than(150 * MIB),
    ):
        (answered,) = client.ask(request, 13).responses
    assert [p.partition_index for p in answered.partitions] == list(range(MANY))
    assert {p.error_code for p in answered.partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}


def test_one_partition_asked_for_a_hundred_thousand_times_does_not_stop_the_loop(
    broker: AttackedBroker, tp: TopicPartition
) -> None:
    """Every append wakes this reader, and each time there is not yet enough for it."""
    wanted = FetchPartition(partition=tp.partition, fetch_offset=1, partition_max_bytes=1)
    with served_throughout(broker) as control, raw_client(broker) as client:
        topic = FetchTopic(topic=control.topic, partitions=[wanted] * MANY)
        request = FetchRequest(max_wait_ms=10_000, min_bytes=INT32_MAX, topics=[topic])
        client.send_request(request, 11)
        started_s = time.perf_counter()
        control.wait_round_trips(30)
        lasted_s = time.perf_counter() - started_s
    assert lasted_s < 25  # a second for each look would be thirty and more


def test_who_says_that_it_is_a_replica_is_not_believed(
    broker: AttackedBroker, tp: TopicPartition
) -> None:
    by_name = fetch_request(tp, 0, replica_id=1)
    with raw_client(broker) as client:
        before = client.ask(fetch_request(tp, 0), 11).responses[0].partitions[0]
        answer = client.ask(by_name, 11).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        after = client.ask(fetch_request(tp, 0), 11).responses[0].partitions[0]
        assert after.high_watermark == before.high_watermark
        partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        asked = OffsetForLeaderEpochRequest(
            replica_id=1, topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[partition])]
        )
        (epochs,) = client.ask(asked, 4).topics
        assert epochs.partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_who_says_so_in_a_tagged_field_is_not_believed_either(
    broker: AttackedBroker, tp: TopicPartition
) -> None:
    with raw_client(broker) as client:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=tp.topic)])
        topic_id = client.ask(asked, 12).topics[0].topic_id
        wanted = FetchTopic(
            topic_id=topic_id, partitions=[FetchPartition(partition=0, partition_max_bytes=1)]
        )
        request = FetchRequest(topics=[wanted], replica_state=ReplicaState(replica_id=1))
        answer = client.ask(request, 15).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_sessions_that_do_not_exist_are_refused_and_too_large_ones_are_not_opened(
    broker: AttackedBroker, tp: TopicPartition
) -> None:
    with raw_client(broker) as client:
        unknown = client.ask(fetch_request(tp, 0, session_id=2**31 - 1, session_epoch=5), 11)
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        topic = FetchTopic(
            topic="not-there",
            partitions=[FetchPartition(partition=n) for n in range(20_000)],
        )
        opened = client.ask(FetchRequest(topics=[topic], session_epoch=0), 11)
        assert opened.session_id == 0


def test_a_session_used_from_two_connections_at_once_hurts_only_itself(
    broker: AttackedBroker, tp: TopicPartition
) -> None:
    with raw_client(broker) as first, raw_client(broker) as second:
        opened = first.ask(fetch_request(tp, 1, session_epoch=0), 11)
        waiting = FetchRequest(
            max_wait_ms=20_000,
            min_bytes=1,
            session_id=opened.session_id,
            session_epoch=1,
        )
        first.send_request(waiting, 11)
        forgetting = FetchRequest(
            session_id=opened.session_id,
            session_epoch=2,
            forgotten_topics_data=[ForgottenTopic(topic=tp.topic, partitions=[0])],
        )
        while second.ask(forgetting, 11).error_code:
            pass  # until the first connection's fetch has been taken
        second.ask(produce_request(tp, bytes(build.batch())), 8)
        assert first.read_answer() is not None
