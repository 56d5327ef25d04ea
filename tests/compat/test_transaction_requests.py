"""Requests about transactions in every version, byte by byte: the codes that clients act on."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest

from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.transaction_wire import (
    PATIENCE_S,
    TIMEOUT_MS,
    Who,
    add,
    begin,
    describe,
    end,
    eventually,
    init,
    log_end,
    mark,
    producers,
    stable_end,
    state_of,
    verify,
    write,
)
from compat.wire import broker_setting, create_topic, fetch, topic_id
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    ListTransactionsRequest,
)

ANY_ID: Final = "any"

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("transactions") / "data",
        {
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            "transaction.max.timeout.ms": str(TIMEOUT_MS),
        },
    )
    served.start()
    with connected(served.address) as raw:
        raw.ask(FindCoordinatorRequest(coordinator_keys=[ANY_ID], key_type=1), 6)
    yield served
    served.stop()


@pytest.fixture
def topic(raw: RawConnection) -> str:
    name = f"topic-{next(_numbers)}"
    create_topic(raw, name, 3)
    return name


# FindCoordinator, InitProducerId


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_of_find_coordinator_finds_a_transactional_id(
    raw: RawConnection, broker: ServedBroker, version: int
) -> None:
    request = FindCoordinatorRequest(key="id", key_type=1, coordinator_keys=["id"])
    answer = raw.ask(request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert found.error_code == ErrorCode.NONE
    assert f"{found.host}:{found.port}" == broker.address


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id_keeps_its_producer_id_and_gets_a_new_epoch(
    raw: RawConnection, version: int
) -> None:
    who = begin(raw, version=version)
    again = init(raw, who.name, version=version)
    assert (again.producer_id, again.producer_epoch) == (who.id, who.epoch + 1)
    other = begin(raw, version=version)
    assert other.id != who.id


def test_more_transactional_ids_than_allowed_are_refused_and_the_others_go_on(
    raw: RawConnection,
) -> None:
    who = begin(raw)
    with broker_setting(raw, "max.transactional.ids", "1"):
        assert init(raw, "one-too-many").error_code == ErrorCode.POLICY_VIOLATION
        assert init(raw, who.name).error_code == ErrorCode.NONE
    assert init(raw, "one-too-many").error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_recovers_with_its_identity_unless_it_was_replaced(
    raw: RawConnection, version: int
) -> None:
    who = begin(raw)
    identity = {"producer_id": who.id, "producer_epoch": who.epoch}
    for _ in range(2):  # the second is a repeated request
        answer = init(raw, who.name, version=version, **identity)
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, who.epoch + 1)
    init(raw, who.name)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    answer = init(raw, who.name, version=version, **identity)
    assert answer.error_code == fenced
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("t", TIMEOUT_MS + 1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("", 1000, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_transaction_has_a_name_and_no_more_time_than_it_may(
    raw: RawConnection, version: int, name: str, timeout_ms: int, code: ErrorCode
) -> None:
    assert init(raw, name, version=version, timeout_ms=timeout_ms).error_code == code


def test_whoever_comes_waits_until_the_transaction_of_the_last_one_is_aborted(
    raw: RawConnection, topic: str
) -> None:
    who = begin(raw)
    add(raw, who, {topic: [0]})
    assert write(raw, who, topic) == ErrorCode.NONE
    request = InitProducerIdRequest(transactional_id=who.name, transaction_timeout_ms=1000)
    assert raw.ask(request, 4).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    answer = init(raw, who.name)
    assert (answer.producer_id, answer.producer_epoch) == (who.id, who.epoch + 2)
    assert stable_end(raw, topic) == 2
    assert fetch(raw, topic, version=11).error_code == ErrorCode.NONE


# AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("version", range(6))
def test_partitions_join_all_or_none(raw: RawConnection, topic: str, version: int) -> None:
    who = begin(raw)
    unknown, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert add(raw, who, {topic: [0, 7]}, version=version) == {
        (topic, 0): not_tried,
        (topic, 7): unknown,
    }
    assert state_of(raw, who) == "Empty"
    assert add(raw, who, {topic: [0, 2]}, version=version) == {(topic, 0): 0, (topic, 2): 0}
    assert add(raw, who, {topic: [0]}, version=version) == {(topic, 0): 0}
    (found,) = describe(raw, who.name)
    assert (found.transaction_state, found.topics[0].partitions) == ("Ongoing", [0, 2])
    assert (found.producer_id, found.producer_epoch) == (who.id, who.epoch)
    assert found.transaction_timeout_ms == TIMEOUT_MS
    now_ms = SystemClock().now_ms()
    assert now_ms - PATIENCE_S * 1000 <= found.transaction_start_time_ms <= now_ms


@pytest.mark.parametrize("version", range(6))
def test_only_the_newest_producer_of_an_id_may_add(
    raw: RawConnection, topic: str, version: int
) -> None:
    who = begin(raw)
    newer = init(raw, who.name)
    older = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert add(raw, who, {topic: [0]}, version=version) == {(topic, 0): older}
    other = who._replace(id=who.id + 5, epoch=newer.producer_epoch)
    assert add(raw, other, {topic: [0]}, version=version) == {(topic, 0): mapping}
    nobody = Who("nobody-has-this", 1, 0)
    assert add(raw, nobody, {topic: [0]}, version=version) == {(topic, 0): mapping}


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_brokers_ask_whether_a_partition_has_joined(
    raw: RawConnection, topic: str, version: int, code: ErrorCode
) -> None:
    who = begin(raw)
    assert set(verify(raw, who, topic, version=version).values()) == {code}
    add(raw, who, {topic: [0]})
    assert verify(raw, who, topic, version=version) == {(topic, 0): 0, (topic, 1): code}
    assert state_of(raw, who) == "Ongoing"
    stale = who._replace(epoch=who.epoch - 1)
    fenced = ErrorCode.PRODUCER_FENCED
    assert set(verify(raw, stale, topic, version=version).values()) == {fenced}


@pytest.mark.parametrize("version", range(5))
def test_a_groups_offsets_join(raw: RawConnection, version: int) -> None:
    who = begin(raw)

    def ask(producer: Who) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id="group",
        )
        code: int = raw.ask(request, version).error_code
        return code

    assert ask(who) == ErrorCode.NONE
    (found,) = describe(raw, who.name)
    assert [t.topic for t in found.topics] == ["__consumer_offsets"]
    older = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert ask(who._replace(epoch=who.epoch - 1)) == older
    assert ask(who._replace(id=who.id + 5)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(raw, who).error_code == ErrorCode.NONE


# EndTxn


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_again_is_harmless_and_the_other_is_not(
    raw: RawConnection, topic: str, version: int, commit: bool
) -> None:
    who = begin(raw)
    assert end(raw, who, commit=commit, version=version).error_code == ErrorCode.INVALID_TXN_STATE
    add(raw, who, {topic: [0]})
    write(raw, who, topic)
    for _ in range(3):
        assert end(raw, who, commit=commit, version=version).error_code == ErrorCode.NONE
    wrong = end(raw, who, commit=not commit, version=version)
    assert wrong.error_code == ErrorCode.INVALID_TXN_STATE
    assert log_end(raw, topic) == 2, "one record and one marker"
    older = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    zombie = who._replace(epoch=who.epoch - 1)
    assert end(raw, zombie, commit=commit, version=version).error_code == older


@pytest.mark.parametrize("commit", [True, False])
def test_version_five_ends_the_epoch_with_the_transaction(
    raw: RawConnection, topic: str, commit: bool
) -> None:
    who = begin(raw)
    assert write(raw, who, topic, version=12) == ErrorCode.NONE
    for _ in range(3):
        answer = end(raw, who, commit=commit, version=5)
        assert answer.error_code == ErrorCode.NONE
        assert (answer.producer_id, answer.producer_epoch) == (who.id, who.epoch + 1)
    wrong = end(raw, who, commit=not commit, version=5)
    assert (wrong.error_code, wrong.producer_id) == (ErrorCode.INVALID_TXN_STATE, -1)
    assert log_end(raw, topic) == 2, "one record and one marker"
    assert write(raw, who, topic, sequence=1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    newer = who._replace(epoch=who.epoch + 1)
    assert write(raw, newer, topic, version=12) == ErrorCode.NONE
    assert end(raw, who, commit=commit, version=5).error_code == ErrorCode.PRODUCER_FENCED
    assert end(raw, newer, version=5).producer_epoch == who.epoch + 2


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_an_older_end_ends_what_a_newer_producer_has_written(
    raw: RawConnection, topic: str, version: int, commit: bool
) -> None:
    """As Flink does it, with another producer than the one that wrote and died."""
    who = begin(raw)
    assert write(raw, who, topic, version=12) == ErrorCode.NONE
    assert stable_end(raw, topic) == 0
    for _ in range(2):
        assert end(raw, who, commit=commit, version=version).error_code == ErrorCode.NONE
    eventually(lambda: stable_end(raw, topic), lambda offset: offset == 2)
    assert log_end(raw, topic) == 2, "one record and one marker"
    assert write(raw, who, topic, sequence=1, version=12) == ErrorCode.NONE
    assert end(raw, who, commit=commit, version=5).producer_epoch == who.epoch + 1
    eventually(lambda: stable_end(raw, topic), lambda offset: offset == 4)


# Produce


@pytest.mark.parametrize("version", range(3, 12))
def test_an_older_producer_writes_only_where_it_has_added(
    raw: RawConnection, topic: str, version: int
) -> None:
    who = begin(raw)
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    assert write(raw, who, topic, version=version) == code
    add(raw, who, {topic: [0]})
    assert write(raw, who, topic, version=version) == ErrorCode.NONE
    assert write(raw, who, topic, sequence=1, version=version) == ErrorCode.NONE
    assert write(raw, who, topic, partition=1, version=version) == code
    assert stable_end(raw, topic) == 0
    assert end(raw, who).error_code == ErrorCode.NONE
    eventually(lambda: stable_end(raw, topic), lambda offset: offset == 3)


@pytest.mark.parametrize("version", [12, 13])
def test_a_newer_producer_adds_by_writing(raw: RawConnection, topic: str, version: int) -> None:
    who = begin(raw)
    key = topic_id(raw, topic) if version >= 13 else topic
    assert write(raw, who, key, version=version) == ErrorCode.NONE
    assert write(raw, who, key, partition=2, version=version) == ErrorCode.NONE
    (found,) = describe(raw, who.name)
    assert (found.transaction_state, found.topics[0].partitions) == ("Ongoing", [0, 2])
    for _ in range(20):  # each begins while the last one may still be ending
        answer = end(raw, who, version=5)
        who = who._replace(epoch=answer.producer_epoch)
        assert write(raw, who, key, version=version) == ErrorCode.NONE


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_write_that_comes_too_late_hangs_nothing(
    raw: RawConnection, topic: str, version: int
) -> None:
    who = begin(raw)
    add(raw, who, {topic: [0]})
    write(raw, who, topic, version=version)
    bumps = version >= 12
    assert end(raw, who, version=5 if bumps else 3).error_code == ErrorCode.NONE
    eventually(lambda: stable_end(raw, topic), lambda offset: offset == 2)
    late = {10: ErrorCode.INVALID_TXN_STATE, 11: ErrorCode.TRANSACTION_ABORTABLE}
    expected = late.get(version, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert write(raw, who, topic, sequence=1, version=version) == expected
    assert stable_end(raw, topic) == log_end(raw, topic) == 2


def test_writes_are_refused_for_what_they_are(raw: RawConnection, topic: str) -> None:
    who = begin(raw)
    add(raw, who, {topic: [0]})
    assert write(raw, who, topic) == ErrorCode.NONE
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert write(raw, who, topic, transactional_id=None) == refused
    assert write(raw, who, topic, sequence=1, acks=1) == ErrorCode.INVALID_REQUIRED_ACKS
    gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(raw, who, topic, sequence=7) == gap
    assert write(raw, who, topic, sequence=0) == ErrorCode.NONE, "it is the same batch again"
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert write(raw, who, topic, transactional_id="nobody-has-this", partition=1) == mapping
    zombie = who._replace(epoch=who.epoch - 1)
    assert write(raw, zombie, topic, sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log_end(raw, topic) == 1


# Time


def test_a_transaction_whose_time_is_over_is_aborted_and_its_epoch_with_it(
    raw: RawConnection, topic: str
) -> None:
    who = begin(raw, timeout_ms=150)
    add(raw, who, {topic: [0]})
    write(raw, who, topic)
    eventually(lambda: state_of(raw, who), lambda state: state == "CompleteAbort")
    assert describe(raw, who.name)[0].producer_epoch == who.epoch + 1
    assert stable_end(raw, topic) == 2
    assert write(raw, who, topic, sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(raw, who, {topic: [0]}) == {(topic, 0): ErrorCode.PRODUCER_FENCED}
    assert end(raw, who, version=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(raw, who, version=4).error_code == ErrorCode.PRODUCER_FENCED
    assert end(raw, who, version=5).error_code == ErrorCode.INVALID_TXN_STATE
    answer = end(raw, who, commit=False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, who.epoch + 1)


# Administration


@pytest.mark.parametrize("version", [1, 2])
def test_an_administrator_ends_what_hangs(raw: RawConnection, topic: str, version: int) -> None:
    who = begin(raw)
    add(raw, who, {topic: [0]})
    write(raw, who, topic)
    (found,) = producers(raw, topic)
    assert (found.producer_id, found.producer_epoch) == (who.id, who.epoch)
    assert (found.current_txn_start_offset, found.coordinator_epoch) == (0, -1)
    assert mark(raw, who, topic, version=version, coordinator_epoch=3) == ErrorCode.NONE
    (found,) = producers(raw, topic)
    assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 3)
    assert stable_end(raw, topic) == 2
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert mark(raw, who, topic, version=version, coordinator_epoch=2) == fenced
    zombie = who._replace(epoch=who.epoch - 1)
    epoch = ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(raw, zombie, topic, version=version, coordinator_epoch=3) == epoch
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert mark(raw, who, topic, version=version, partition=9) == unknown
    assert mark(raw, who, "no-such-topic", version=version) == unknown


def test_a_late_marker_of_version_two_does_not_end_the_next_transaction(
    raw: RawConnection, topic: str
) -> None:
    who = begin(raw)
    write(raw, who, topic, version=12)
    answer = end(raw, who, version=5)
    newer = who._replace(epoch=answer.producer_epoch)
    assert write(raw, newer, topic, version=12) == ErrorCode.NONE
    coordinator_epoch = producers(raw, topic)[0].coordinator_epoch
    code = mark(
        raw,
        newer,
        topic,
        version=2,
        coordinator_epoch=coordinator_epoch,
        transaction_version=2,
    )
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers(raw, topic)[0].current_txn_start_offset == 2


def test_descriptions_answer_for_every_id(raw: RawConnection) -> None:
    who = begin(raw)
    found, unknown, empty = describe(raw, who.name, "nobody-has-this", "")
    assert (found.error_code, found.transaction_state) == (ErrorCode.NONE, "Empty")
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_lists_are_filtered(raw: RawConnection, topic: str, version: int) -> None:
    idle, busy = begin(raw), begin(raw)
    add(raw, busy, {topic: [0]})

    def listed(**filters: Any) -> set[str]:
        answer = raw.ask(ListTransactionsRequest(**filters), version)
        assert answer.error_code == ErrorCode.NONE
        names = {one.transactional_id for one in answer.transaction_states}
        return names & {idle.name, busy.name}

    assert listed() == {idle.name, busy.name}
    assert listed(state_filters=["Ongoing"]) == {busy.name}
    assert listed(state_filters=["Ongoing", "Empty"]) == {idle.name, busy.name}
    assert listed(producer_id_filters=[idle.id]) == {idle.name}
    answer = raw.ask(ListTransactionsRequest(state_filters=["Asleep"]), version)
    assert answer.unknown_state_filters == ["Asleep"]
    assert answer.transaction_states == []
    if version >= 1:
        assert listed(duration_filter=TIMEOUT_MS) == set()
        is_listed = lambda names: names == {busy.name}  # noqa: E731
        eventually(lambda: listed(duration_filter=1), is_listed)
    if version >= 2:
        assert listed(transactional_id_pattern=f"{idle.name[:-1]}.") >= {idle.name}
        assert listed(transactional_id_pattern="id") == set()
        for pattern in ("(", "(a*)*", "a*b*c*"):
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            answer = raw.ask(request, version)
            assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("version", [3, 4])
def test_the_feature_is_announced(raw: RawConnection, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = raw.ask(request, version)
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized["transaction.version"] == 2
    assert answer.finalized_features_epoch >= 0
    supported = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
    assert (("transaction.version", 0, 2) in supported) == (version >= 4)
