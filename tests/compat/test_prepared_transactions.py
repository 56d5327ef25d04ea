"""What is prepared is decided: a coordinator that finds it in its log goes on with it.

The log is what a broker left that was killed after the decision was on disk and before a single
marker was written. It is made by writing that record behind what a killed broker really left.
"""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.transaction_wire import (
    READ_COMMITTED,
    Who,
    begin,
    describe,
    end,
    eventually,
    producers,
    stable_end,
    state_of,
    write,
)
from compat.wire import create_topic, fetch_request, want
from fakes import build
from ottla.coordinator.transactions.records import State, Transaction, from_bytes, to_bytes
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.records.batch import Record, batches, build_batch, records
from ottla.storage.files import OsFiles


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[ServedBroker]:
    served = ServedBroker(data, {"transaction.state.log.num.partitions": "1"})
    served.start()
    with connected(served.address) as raw:
        raw.ask(FindCoordinatorRequest(coordinator_keys=["any"], key_type=1), 6)
        create_topic(raw, "t", 2)
    yield served
    served.stop()


def open_transaction(raw: RawConnection) -> Who:
    """A producer that has written to two partitions, and to none of them the end."""
    who = begin(raw)
    for partition in (0, 1):
        assert write(raw, who, "t", partition=partition, version=12) == ErrorCode.NONE
    assert state_of(raw, who) == "Ongoing"
    return who


def leave_behind(data: Path, state: State) -> None:
    """Write the decision into the log of a broker that is not running."""
    directory = data / "__transaction_state-0"
    log = build.log(OsFiles(), directory=directory)
    found = log.read(log.start_offset, log.end_offset, 1 << 20, at_least_one=True)
    assert found is not None
    letters = [letter for _, batch in batches(log.read_bytes(found)) for letter in records(batch)]
    assert letters[-1].key is not None
    ongoing = from_bytes(letters[-1].key, letters[-1].value)
    assert isinstance(ongoing, Transaction)
    assert ongoing.state is State.ONGOING
    epoch = ProducerEpoch(ongoing.producer.epoch + 1)
    prepared = replace(
        ongoing, state=state, producer=ongoing.producer._replace(epoch=epoch), last=ongoing.producer
    )
    key, value = to_bytes(prepared)
    batch = build_batch([Record(timestamp_ms=build.NOW_MS, key=key, value=value)])
    log.append_as_leader(batch, log.epochs.latest, build.NOW_MS)
    log.flush()
    log.close()


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_transaction_ends_the_way_it_was_prepared_after_a_crash(
    broker: ServedBroker, data: Path, state: State
) -> None:
    with connected(broker.address) as raw:
        who = open_transaction(raw)
    broker.end(signal.SIGKILL)
    leave_behind(data, state)
    broker.start()
    is_commit = state is State.PREPARE_COMMIT
    with connected(broker.address) as raw:
        ended = "CompleteCommit" if is_commit else "CompleteAbort"
        eventually(lambda: state_of(raw, who), lambda found: found == ended)
        for partition in (0, 1):
            assert stable_end(raw, "t", partition) == 2
            request = fetch_request({"t": [want(partition)]}, isolation_level=READ_COMMITTED)
            (read,) = raw.ask(request, 11).responses[0].partitions
            aborted = [(one.producer_id, one.first_offset) for one in read.aborted_transactions]
            assert aborted == ([] if is_commit else [(who.id, 0)])
        assert producers(raw, "t")[0].current_txn_start_offset == -1
        # The producer did not hear how it ended, and asks again.
        repeated = end(raw, who, commit=is_commit, version=5)
        assert (repeated.error_code, repeated.producer_epoch) == (ErrorCode.NONE, who.epoch + 1)
        other = end(raw, who, commit=not is_commit, version=5)
        assert other.error_code == ErrorCode.INVALID_TXN_STATE
        newer = who._replace(epoch=who.epoch + 1)
        assert write(raw, who, "t", sequence=1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert write(raw, newer, "t", version=12) == ErrorCode.NONE
        assert describe(raw, who.name)[0].topics[0].partitions == [0]
