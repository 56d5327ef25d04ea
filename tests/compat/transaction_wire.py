"""Requests about transactions, as raw as tests need them, and what the answers say."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

from compat.raw import RawConnection
from compat.wire import batch, list_offset, produce
from ottla.errors import ErrorCode
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    InitProducerIdRequest,
    ProducerState,
)
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

PATIENCE_S: Final = 60
LATEST: Final = -1
READ_COMMITTED: Final = 1
TIMEOUT_MS: Final = 60_000

_numbers = count(1)


class Who(NamedTuple):
    """A transactional id and the identity that it has now."""

    name: str
    id: int
    epoch: int


def init(
    raw: RawConnection, name: str, *, version: int = 5, timeout_ms: int = TIMEOUT_MS, **more: Any
) -> Any:
    """Asks until the coordinator has read its log and ended what was open, as clients do."""
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=timeout_ms, **more
    )
    wait = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}
    return eventually(lambda: raw.ask(request, version), lambda a: a.error_code not in wait)


def begin(raw: RawConnection, **more: Any) -> Who:
    name = f"id-{next(_numbers)}"
    answer = init(raw, name, **more)
    assert answer.error_code == ErrorCode.NONE
    return Who(name, answer.producer_id, answer.producer_epoch)


def add(
    raw: RawConnection, who: Who, topics: dict[str, list[int]], *, version: int = 3
) -> dict[tuple[str, int], int]:
    wanted = [AddPartitionsToTxnTopic(name=t, partitions=p) for t, p in topics.items()]
    answer = raw.ask(
        AddPartitionsToTxnRequest(
            transactions=[_batched(who, wanted)],
            v3_and_below_transactional_id=who.name,
            v3_and_below_producer_id=who.id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=wanted,
        ),
        version,
    )
    if version < 4:
        return _errors(answer.results_by_topic_v3_and_below)
    (one,) = answer.results_by_transaction
    assert one.transactional_id == who.name
    return _errors(one.topic_results)


def verify(raw: RawConnection, who: Who, topic: str, *, version: int) -> dict[Any, int]:
    wanted = [AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])]
    request = AddPartitionsToTxnRequest(transactions=[_batched(who, wanted, verify_only=True)])
    (one,) = raw.ask(request, version).results_by_transaction
    return _errors(one.topic_results)


def _batched(
    who: Who, topics: list[AddPartitionsToTxnTopic], *, verify_only: bool = False
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=who.name,
        producer_id=who.id,
        producer_epoch=who.epoch,
        verify_only=verify_only,
        topics=topics,
    )


def _errors(results: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in results
        for partition in topic.results_by_partition
    }


def end(raw: RawConnection, who: Who, *, commit: bool = True, version: int = 3) -> Any:
    request = EndTxnRequest(
        transactional_id=who.name,
        producer_id=who.id,
        producer_epoch=who.epoch,
        committed=commit,
    )
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    return eventually(lambda: raw.ask(request, version), lambda a: a.error_code != concurrent)


def write(
    raw: RawConnection, who: Who, topic: Any, *, sequence: int = 0, version: int = 11, **more: Any
) -> int:
    records = batch(
        b"x",
        producer_id=who.id,
        producer_epoch=who.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    more.setdefault("transactional_id", who.name)
    code: int = produce(raw, topic, records, version=version, **more).error_code
    return code


def describe(raw: RawConnection, *names: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=list(names))
    return raw.ask(request, 0).transaction_states


def state_of(raw: RawConnection, who: Who) -> str:
    state: str = describe(raw, who.name)[0].transaction_state
    return state


def mark(
    raw: RawConnection,
    who: Who,
    topic: str,
    *,
    version: int = 1,
    partition: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> int:
    """Abort as an administrator does."""
    marker = WritableTxnMarker(
        producer_id=who.id,
        producer_epoch=who.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    (answer,) = raw.ask(WriteTxnMarkersRequest(markers=[marker]), version).markers
    assert answer.producer_id == who.id
    code: int = answer.topics[0].partitions[0].error_code
    return code


def producers(raw: RawConnection, topic: str) -> list[ProducerState]:
    wanted = DescribeProducersRequestTopic(name=topic, partition_indexes=[0])
    answer = raw.ask(DescribeProducersRequest(topics=[wanted]), 0)
    found: list[ProducerState] = answer.topics[0].partitions[0].active_producers
    return found


def stable_end(raw: RawConnection, topic: str, partition: int = 0) -> int:
    found = list_offset(raw, topic, LATEST, partition=partition, isolation_level=READ_COMMITTED)
    return int(found.offset)


def log_end(raw: RawConnection, topic: str) -> int:
    return int(list_offset(raw, topic, LATEST).offset)


def eventually(ask: Callable[[], Any], is_done: Callable[[Any], bool]) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answer = ask()
        if is_done(answer):
            return answer
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.02)
