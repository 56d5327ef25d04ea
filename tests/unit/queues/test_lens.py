"""Readers see shown records alone, and get past everything that is hidden."""

import pytest

from fakes.waiting_log import WaitingLog, record
from ottla.model import LeaderEpoch, Offset
from ottla.queues.lens import REBUILT_MAX, Lens, ShownBatch, build_skip, hides_any, shown_aborted
from ottla.records.batch import (
    HIDES,
    LEADER_WRITTEN,
    BatchHeader,
    MarkerKind,
    batches,
    check_stored,
    read_marker,
    records,
)
from ottla.records.compression import Codec

BYTES_MAX = 1 << 20


def whole(log: WaitingLog) -> bytes:
    found = log.log.read(log.log.start_offset, log.log.end_offset, BYTES_MAX, at_least_one=True)
    assert found is not None
    return log.log.read_bytes(found)


def looked_at(data: bytes) -> list[tuple[BatchHeader, list[bytes | None]]]:
    """The batches that a reader gets, each with its values; a skip has none."""
    lens = Lens(BYTES_MAX)
    assert lens.take(data)
    view = lens.finish()
    found = []
    for header, batch in batches(view.data):
        check_stored(batch)
        values = [] if header.is_control else [one.value for one in records(batch)]
        found.append((header, values))
    return found


def test_a_run_of_hidden_batches_is_one_skip_with_the_epoch_of_its_last() -> None:
    log = WaitingLog()
    for _ in range(3):
        log.send([record(delay_ms=1000)] * 4)
    log.lead()
    log.send([record(delay_ms=1000)])
    [(header, values)] = looked_at(whole(log))
    assert values == []
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (0, 12, 2)
    assert (header.is_control, header.producer_id, header.record_count) == (True, -1, 1)


def test_a_skip_is_a_commit_marker_of_no_producer_at_its_last_offset() -> None:
    skip = build_skip(Offset(5), Offset(8), LeaderEpoch(3))
    marker = read_marker(skip)
    assert marker is not None
    assert marker.kind is MarkerKind.COMMIT
    [only] = records(skip)
    assert (only.offset, len(only.key or b"")) == (7, 4)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_mixed_batch_ends_with_its_last_shown_record_and_a_skip_follows(codec: Codec) -> None:
    log = WaitingLog()
    hidden, shown = record(delay_ms=1000), record(b"shown")
    log.send([hidden, shown, hidden, shown, hidden, hidden], codec=codec)
    (header, values), (skip, _) = looked_at(whole(log))
    assert values == [b"shown", b"shown"]
    assert (header.base_offset, header.last_offset) == (0, 3)
    assert not header.attributes & (HIDES | LEADER_WRITTEN)
    assert header.codec is codec
    assert (skip.base_offset, skip.last_offset, skip.is_control) == (4, 5, True)


def test_a_skip_never_stands_for_a_marker() -> None:
    log = WaitingLog()
    log.send([record(delay_ms=9)], producer_id=4, sequence=0, is_transactional=True)
    log.end(4, MarkerKind.ABORT)
    log.send([record(delay_ms=9)])
    kinds = [(one.base_offset, one.producer_id) for one, _ in looked_at(whole(log))]
    assert kinds == [(0, -1), (1, 4), (2, -1)]


def test_a_log_without_hidden_records_is_sent_as_it_is() -> None:
    log = WaitingLog()
    log.send([record(b"one", delay_ms=0)])
    assert not hides_any(whole(log))
    log.send([record(delay_ms=1)])
    assert hides_any(whole(log))


def test_a_reader_of_many_mixed_batches_gets_some_of_them_at_a_time() -> None:
    log = WaitingLog()
    for _ in range(REBUILT_MAX + 3):
        log.send([record(b"shown"), record(delay_ms=1000)])
    lens = Lens(BYTES_MAX)
    assert not lens.take(whole(log))
    view = lens.finish()
    assert view.end_offset == 2 * REBUILT_MAX
    assert len(log.seen()) == REBUILT_MAX + 3


def test_only_aborted_transactions_with_a_shown_batch_are_listed_from_that_batch_on() -> None:
    aborted = [(1, 10, 20), (2, 10, 20), (1, 30, 40)]
    shown = [ShownBatch(1, Offset(15)), ShownBatch(1, Offset(17)), ShownBatch(2, Offset(25))]
    assert shown_aborted(aborted, shown) == [(1, 15)]
