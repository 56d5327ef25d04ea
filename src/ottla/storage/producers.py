"""The state of a partition's idempotent and transactional producers.

Enough to tell a repeated batch from a new one and a gap from a sequence (the last five batches
of each producer), and to know below which offset every transaction is decided. All of it can be
rebuilt from the log; snapshots only shorten the way. Their format is Kafka's (version 1), which
keeps one batch per producer; the older ones follow behind its last field, where Kafka does not
look but its checksum reaches. Behind them is the checksum of the aborted transactions that the
segment had up to there, for `.txnindex` has none.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.config import TopicConfig
from ottla.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequence,
    PolicyViolation,
)
from ottla.model import (
    MAPPED_IDS_FROM,
    NO_OFFSET,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.records.batch import SEQUENCE_MASK, TRANSACTIONAL, BatchHeader, Marker, MarkerKind
from ottla.records.crc import crc32c
from ottla.storage.index import AbortedTransaction

BATCHES_KEPT: Final = 5  # as many as a producer may have in flight
# Silent for so long, a producer repeats nothing any more: clients give a record up after two
# minutes by default.
_MAY_REPEAT_MS: Final = 600_000

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEADER: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_OLDER_COUNT: Final = struct.Struct(">b")
_OLDER: Final = struct.Struct(">iqiq")
_ABORTED_CRC: Final = struct.Struct(">I")


class ProducedBatch(NamedTuple):
    """A batch that is in the log, by the numbers its producer gave it."""

    first_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    appended_ms: TimestampMs


class DecidedTransaction(NamedTuple):
    """A transaction that has its marker, though readers may not see the marker yet."""

    first_offset: Offset
    marker_offset: Offset


class SnapshotDamaged(Exception):
    """A snapshot file is not what it should be: use an older one."""


class Producer:
    """The state of one producer. Owned by `Producers`."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "marker_count",
        "next_sequence",
        "transaction_start",
    )

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: tuple[ProducedBatch, ...] = ()  # the last ones, oldest first
        self.transaction_start = NO_OFFSET  # first offset of the transaction that is open
        self.coordinator_epoch = -1
        self.last_seen_ms = TimestampMs(-1)
        self.marker_count = 0  # since the log was opened: has a transaction ended meanwhile?

    def has_open(self, epoch: int) -> bool:
        """True when a transaction of this epoch has records here."""
        return self.epoch == epoch and self.transaction_start >= 0


class Producers:
    """Every producer a partition remembers. Owned by one log."""

    def __init__(self) -> None:
        self._producers: dict[ProducerId, Producer] = {}
        self._open: dict[ProducerId, Offset] = {}  # in the order of their first offsets
        self._decided: list[DecidedTransaction] = []

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: ProducerId) -> Producer | None:
        return self._producers.get(producer_id)

    def items(self) -> Iterable[tuple[ProducerId, Producer]]:
        return self._producers.items()

    def admit(
        self, header: BatchHeader, config: TopicConfig, now_ms: TimestampMs
    ) -> ProducedBatch | None:
        """`check`, and for a producer that is not known yet: see that there is room for it.

        Producers that have been silent for long are forgotten before their time. Those that may
        still repeat a batch are not: rather than write it twice, the new producer is refused.
        """
        if header.producer_id in self._producers:
            return self.check(header)
        if header.producer_id >= MAPPED_IDS_FROM:
            raise InvalidRecord(
                f"producer id {header.producer_id} is none that a broker gives to clients: ask for"
                " one with InitProducerId"
            )
        self._make_room(config, now_ms)
        return None

    def introduce(self, header: BatchHeader, config: TopicConfig, now_ms: TimestampMs) -> None:
        """Have a batch continue its producer's sequence, which is in another partition's log."""
        if header.producer_id not in self._producers:
            self._make_room(config, now_ms)
        self._at_epoch(header).next_sequence = header.base_sequence

    def _make_room(self, config: TopicConfig, now_ms: TimestampMs) -> None:
        if len(self._producers) < config.producers_max:
            return
        self.expire(now_ms, _MAY_REPEAT_MS)
        if len(self._producers) >= config.producers_max:
            raise PolicyViolation(
                f"{len(self._producers)} producers write to the partition, and the topic's"
                f" max.producers allows {config.producers_max}: use fewer at a time, or raise it"
            )

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Refuse what may not be appended next; return the first copy of a repeated batch."""
        producer = self._producers.get(ProducerId(header.producer_id))
        if producer is None:
            return None
        if header.producer_epoch == producer.epoch:
            if header.base_sequence != producer.next_sequence:
                return _find_repeated(producer, header)
        elif header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has been replaced: epoch {header.producer_epoch}"
                f" is older than {producer.epoch}"
            )
        elif header.base_sequence != 0:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with"
                f" sequence {header.base_sequence} instead of 0"
            )
        if producer.transaction_start >= 0 and not header.attributes & TRANSACTIONAL:
            raise InvalidTxnState(f"producer {header.producer_id} has a transaction open")
        return None

    def note(self, header: BatchHeader, base_offset: Offset, now_ms: TimestampMs) -> None:
        """A batch of data has been appended at `base_offset`."""
        producer = self._producers.get(ProducerId(header.producer_id))
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._at_epoch(header)
        delta = header.last_offset_delta
        first_sequence = header.base_sequence
        last_sequence = (first_sequence + delta) & SEQUENCE_MASK
        last_offset = Offset(base_offset + delta)
        # When it is read again in recovery, the batch itself may know when it was appended.
        appended_ms = now_ms
        if header.is_log_append_time:
            appended_ms = TimestampMs(header.max_timestamp_ms)
        batch = ProducedBatch(first_sequence, last_sequence, base_offset, last_offset, appended_ms)
        producer.batches = (*producer.batches[1 - BATCHES_KEPT :], batch)
        producer.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        producer.last_seen_ms = now_ms
        if producer.transaction_start < 0 and header.attributes & TRANSACTIONAL:
            producer.transaction_start = base_offset
            self._open[ProducerId(header.producer_id)] = base_offset

    def check_marker(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> None:
        """Refuse the marker of a producer, or of a coordinator, that has been replaced."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"the coordinator of producer {producer_id} has been replaced: epoch"
                f" {coordinator_epoch} is older than {producer.coordinator_epoch}"
            )
        if producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has been replaced: epoch {producer_epoch} is older than"
                f" {producer.epoch}"
            )

    def note_marker(
        self, header: BatchHeader, marker_offset: Offset, marker: Marker, now_ms: TimestampMs
    ) -> AbortedTransaction | None:
        """A marker has been appended; return what readers of committed records must skip."""
        producer_id = ProducerId(header.producer_id)
        producer = self._at_epoch(header)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.marker_count += 1
        producer.last_seen_ms = now_ms
        first_offset, producer.transaction_start = producer.transaction_start, NO_OFFSET
        if first_offset < 0:
            return None
        del self._open[producer_id]
        self._decided.append(DecidedTransaction(first_offset, marker_offset))
        if marker.kind is MarkerKind.COMMIT:
            return None
        undecided = next(iter(self._open.values()), Offset(marker_offset + 1))
        return AbortedTransaction(producer_id, first_offset, marker_offset, undecided)

    def first_unstable(self, high_watermark: Offset) -> Offset | None:
        """The first offset whose transaction is open, or decided where readers cannot see it."""
        if not self._decided and not self._open:
            return None
        self._decided = [one for one in self._decided if one.marker_offset >= high_watermark]
        starts = [one.first_offset for one in self._decided]
        starts += list(self._open.values())[:1]
        return min(starts, default=None)

    def expire(self, now_ms: TimestampMs, expiry_ms: int) -> int:
        """Forget producers that have been silent for too long; return how many."""
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start < 0 and now_ms - producer.last_seen_ms >= expiry_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def encode(self, aborted_crc: int | None = None) -> bytes:
        """A snapshot of everything but the batches' content.

        `aborted_crc` is the checksum of what was aborted in the segment that is written.
        """
        body = bytearray(_COUNT.pack(len(self._producers)))
        for producer_id, producer in self._producers.items():
            body += _encode_entry(producer_id, producer)
        for producer in self._producers.values():
            older = producer.batches[:-1]
            body += _OLDER_COUNT.pack(len(older))
            for batch in older:
                body += _OLDER.pack(*_encode_batch(batch), batch.appended_ms)
        if aborted_crc is not None:
            body += _ABORTED_CRC.pack(aborted_crc)
        return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot":
        """Read a snapshot, unless it is damaged."""
        try:
            return cls._decode(memoryview(data))
        except struct.error:
            raise SnapshotDamaged("the producer snapshot ends early") from None

    @classmethod
    def _decode(cls, data: memoryview) -> "Snapshot":
        version, crc = _SNAPSHOT_HEADER.unpack_from(data)
        body = data[_SNAPSHOT_HEADER.size :]
        if version != _SNAPSHOT_VERSION or crc != crc32c(body):
            raise SnapshotDamaged("the producer snapshot's checksum does not match")
        (count,) = _COUNT.unpack_from(body)
        end = _COUNT.size + count * _ENTRY.size
        producers = cls()
        for numbers in _ENTRY.iter_unpack(body[_COUNT.size : end]):
            producers._load(*numbers)
        if len(body) > end:  # Kafka's own snapshots end here
            end += producers._load_older(body[end:])
        aborted_crc: int | None = None
        if len(body) > end:  # those of an older Ottla end here
            (aborted_crc,) = _ABORTED_CRC.unpack_from(body, end)
        by_offset = sorted(producers._open.items(), key=lambda item: item[1])
        producers._open = dict(by_offset)
        return Snapshot(producers, aborted_crc)

    def _load(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        last_seen_ms: int,
        coordinator_epoch: int,
        transaction_start: int,
    ) -> None:
        producer = Producer(ProducerEpoch(epoch))
        producer.last_seen_ms = TimestampMs(last_seen_ms)
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start = Offset(transaction_start)
        if last_offset >= 0:
            batch = _decode_batch(last_sequence, last_offset, offset_delta, last_seen_ms)
            producer.batches = (batch,)
            producer.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        if transaction_start >= 0:
            self._open[ProducerId(producer_id)] = Offset(transaction_start)
        self._producers[ProducerId(producer_id)] = producer

    def _load_older(self, data: memoryview) -> int:
        """Read each producer's older batches; return how many bytes they take."""
        position = 0
        for producer in self._producers.values():
            (count,) = _OLDER_COUNT.unpack_from(data, position)
            position += _OLDER_COUNT.size
            end = position + count * _OLDER.size
            older = map(_decode_older, _OLDER.iter_unpack(data[position:end]))
            producer.batches = (*older, *producer.batches)
            position = end
        return position

    def _at_epoch(self, header: BatchHeader) -> Producer:
        """The producer of a batch; what was known of it in an older epoch is forgotten."""
        producer_id, epoch = ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches = ()
            producer.next_sequence = 0
        return producer


class Snapshot(NamedTuple):
    """The content of a snapshot file; None for a checksum that it does not have."""

    producers: Producers
    aborted_crc: int | None


def _find_repeated(producer: Producer, header: BatchHeader) -> ProducedBatch:
    for batch in producer.batches:
        if (batch.first_sequence, batch.last_sequence) == (
            header.base_sequence,
            header.last_sequence,
        ):
            return batch
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sends sequence {header.base_sequence}, expected is"
        f" {producer.next_sequence}"
    )


def _encode_entry(producer_id: ProducerId, producer: Producer) -> bytes:
    last = _encode_batch(producer.batches[-1]) if producer.batches else (-1, -1, 0)
    return _ENTRY.pack(
        producer_id,
        producer.epoch,
        *last,
        producer.last_seen_ms,
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def _encode_batch(batch: ProducedBatch) -> tuple[int, int, int]:
    return batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset


def _decode_batch(
    last_sequence: int, last_offset: int, offset_delta: int, appended_ms: int
) -> ProducedBatch:
    first_sequence = (last_sequence - offset_delta) & SEQUENCE_MASK
    base_offset = Offset(last_offset - offset_delta)
    return ProducedBatch(
        first_sequence, last_sequence, base_offset, Offset(last_offset), TimestampMs(appended_ms)
    )


def _decode_older(numbers: tuple[int, int, int, int]) -> ProducedBatch:
    return _decode_batch(*numbers)


def snapshots_newest_first(offsets: list[Offset], not_above: Offset) -> Iterator[Offset]:
    """In which order snapshots are worth trying for a log that reaches `not_above` at least."""
    return (offset for offset in sorted(offsets, reverse=True) if offset <= not_above)
