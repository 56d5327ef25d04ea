"""What a reader may see of transactions."""

from ottla.client.isolation import readable
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from ottla.records.batch import (
    Marker,
    MarkerKind,
    Record,
    build_batch,
    build_marker,
    records,
    stamp,
)

ONE, TWO = ProducerId(1), ProducerId(2)


class Log:
    """A partition's bytes, written batch by batch."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.end = Offset(0)

    def write(self, *values: bytes, producer: ProducerId | None = None) -> None:
        letters = [Record(timestamp_ms=TimestampMs(0), value=value) for value in values]
        if producer is None:
            self._append(build_batch(letters), len(letters))
        else:
            batch = build_batch(
                letters,
                producer_id=producer,
                producer_epoch=ProducerEpoch(0),
                base_sequence=Sequence(0),
                is_transactional=True,
            )
            self._append(batch, len(letters))

    def end_transaction(self, producer: ProducerId, kind: MarkerKind) -> None:
        marker = build_marker(
            Marker(kind, 0),
            producer_id=producer,
            producer_epoch=ProducerEpoch(0),
            timestamp_ms=TimestampMs(0),
        )
        self._append(marker, 1)

    def _append(self, batch: bytearray, count: int) -> None:
        stamp(batch, self.end, LeaderEpoch(0))
        self.content += batch
        self.end = Offset(self.end + count)


def seen(log: Log, aborted: list[tuple[Offset, ProducerId]]) -> list[bytes | None]:
    return [
        record.value
        for _, batch in readable(log.content, aborted)
        if batch is not None
        for record in records(batch)
    ]


def test_an_aborted_transaction_is_not_seen_and_its_neighbours_are() -> None:
    log = Log()
    log.write(b"plain")
    log.write(b"void", producer=ONE)
    log.write(b"kept", producer=TWO)
    log.write(b"void too", producer=ONE)
    log.end_transaction(ONE, MarkerKind.ABORT)
    log.end_transaction(TWO, MarkerKind.COMMIT)
    assert seen(log, [(Offset(1), ONE)]) == [b"plain", b"kept"]


def test_a_producer_is_heard_again_after_its_abort() -> None:
    log = Log()
    log.write(b"void", producer=ONE)
    log.end_transaction(ONE, MarkerKind.ABORT)
    log.write(b"kept", producer=ONE)
    log.end_transaction(ONE, MarkerKind.COMMIT)
    assert seen(log, [(Offset(0), ONE)]) == [b"kept"]


def test_a_producer_may_abort_twice() -> None:
    log = Log()
    for value in (b"void", b"void too"):
        log.write(value, producer=ONE)
        log.end_transaction(ONE, MarkerKind.ABORT)
    log.write(b"kept", producer=ONE)
    assert seen(log, [(Offset(2), ONE), (Offset(0), ONE)]) == [b"kept"]


def test_without_aborted_transactions_only_markers_are_hidden() -> None:
    log = Log()
    log.write(b"seen", producer=ONE)
    log.end_transaction(ONE, MarkerKind.ABORT)
    assert seen(log, []) == [b"seen"]


def test_hidden_batches_still_take_their_offsets() -> None:
    log = Log()
    log.write(b"void", b"void", producer=ONE)
    log.end_transaction(ONE, MarkerKind.ABORT)
    assert [header.next_offset for header, _ in readable(log.content, [(Offset(0), ONE)])] == [2, 3]


def test_a_batch_that_arrived_in_part_is_left_for_the_next_fetch() -> None:
    log = Log()
    log.write(b"whole")
    log.write(b"cut")
    log.content = log.content[:-3]
    assert seen(log, []) == [b"whole"]
