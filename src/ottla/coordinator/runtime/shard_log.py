"""A partition of a coordinator's topic as a log of its machine's records."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol

from ottla.clock import Clock
from ottla.coordinator.runtime.decision import RecordT
from ottla.coordinator.runtime.log_entries import (
    Entry,
    ProducerIdentity,
    TransactionEnded,
    UnreadableRecord,
)
from ottla.errors import ApiError, NotCoordinator, RequestTimedOut
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs
from ottla.model import Sequence as SequenceNumber
from ottla.records import batch as batches
from ottla.records.batch import Packed, seal
from ottla.records.record_codec import write_first_record, write_record
from ottla.replication.partition import ACKS_ALL, LeaderPartition, Receipt
from ottla.replication.replicas import Replicas

log = logging.getLogger("ottla.coordinator")

COMMIT_S: Final = 30.0  # timeout of a commit: then it is considered lost
_LOAD_S: Final = 30.0  # timeout of a load for the commit of what is in the log
_CHUNK_BYTES: Final = 1 << 20  # read of a log in one turn of the loop
_BATCH_BYTES: Final = 1 << 20  # beyond, records of one turn go into further batches

OnCommit = Callable[[ApiError | None], None]


class RecordCodec(Protocol[RecordT]):
    """How records of a machine are written."""

    def encode(self, record: RecordT, /) -> Entry: ...

    def decode(self, entry: Entry | TransactionEnded, /) -> RecordT | None:
        """The inverse of `encode`; None for an entry that the machine does not need."""
        ...


class ShardLog(Generic[RecordT]):
    """Appends and reads a machine's records, as long as this broker leads the partition."""

    __slots__ = ("_clock", "_codec", "_replicas", "partition")

    def __init__(
        self,
        partition: LeaderPartition,
        codec: RecordCodec[RecordT],
        replicas: Replicas,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self._codec = codec
        self._replicas = replicas
        self._clock = clock

    @property
    def is_led(self) -> bool:
        return self._replicas.leaders.get(self.partition.tp) is self.partition

    def append(self, records: Sequence[RecordT], on_commit: OnCommit) -> bool:
        """Write now; True if it is committed by then, on a topic that does not wait for the disk.

        Otherwise `on_commit` is called once: with None, or with why it will never commit.
        """
        if not self.is_led:
            raise self._not_led()
        partition, now_ms = self.partition, self._clock.now_ms()
        receipt: Receipt | None = None
        for producer, packed in self._pack(records, now_ms):
            batch = seal(packed) if producer is None else _seal(packed, producer, partition)
            receipt = partition.append(memoryview(batch), ACKS_ALL, now_ms, has_keys=True)
        assert receipt is not None, "records make a batch"
        if not receipt.is_settled:
            partition.wait_settled(receipt.end_offset, ACKS_ALL, on_commit)
        return receipt.is_settled

    def _pack(
        self, records: Sequence[RecordT], now_ms: TimestampMs
    ) -> Iterator[tuple[ProducerIdentity | None, Packed]]:
        """Records for one batch each: of one producer, and not too many."""
        assert records, "an append has records"
        payload, count = bytearray(), 0
        last: ProducerIdentity | None = None
        for record in records:
            key, value, producer = self._codec.encode(record)
            if count and (producer != last or len(payload) > _BATCH_BYTES):
                yield last, Packed(payload, count, now_ms, now_ms)
                payload, count = bytearray(), 0
            last = producer
            if count or key is None or value is None:
                write_record(payload, 0, count, key, value, ())
            else:
                write_first_record(payload, key, value)
            count += 1
        yield last, Packed(payload, count, now_ms, now_ms)

    def append_marker(
        self, marker: batches.Marker, producer: ProducerIdentity, on_commit: OnCommit
    ) -> None:
        """Append the marker that ends a producer's transaction.

        `on_commit` is called as by `append`, or before this returns if it is committed by then.
        """
        if not self.is_led:
            raise self._not_led()
        partition = self.partition
        end = partition.append_marker(marker, producer.id, producer.epoch, self._clock.now_ms())
        if partition.is_settled(end, ACKS_ALL):
            on_commit(None)
        else:
            partition.wait_settled(end, ACKS_ALL, on_commit)

    async def read(self) -> AsyncIterator[list[RecordT]]:
        """Every record that was ever committed, a chunk at a time."""
        partition = self.partition
        end = partition.log.end_offset
        await committed(partition, end, _LOAD_S)
        bytes_max = batches.decompressed_bytes_max(partition.log.config.max_message_bytes)
        position = partition.log.start_offset
        unreadable_count = 0
        while position < end:
            if not self.is_led:
                raise self._not_led()
            found = partition.log.read(position, end, _CHUNK_BYTES, at_least_one=True)
            if found is None:
                break
            chunk: list[RecordT] = []
            for header, view in batches.batches(partition.log.read_bytes(found)):
                position = header.next_offset
                unreadable_count += self._decode(_entries(header, view, bytes_max), chunk)
            yield chunk
            await asyncio.sleep(0)
        if unreadable_count:
            log.warning(
                "unreadable records skipped",
                extra={"tp": partition.tp, "count": unreadable_count},
            )

    def _decode(self, entries: Iterable[Entry | TransactionEnded], chunk: list[RecordT]) -> int:
        """Append the entries' records to `chunk`; returns how many are unreadable."""
        unreadable_count = 0
        for entry in entries:
            try:
                record = self._codec.decode(entry)
            except UnreadableRecord:
                unreadable_count += 1
                continue
            if record is not None:
                chunk.append(record)
        return unreadable_count

    def _not_led(self) -> NotCoordinator:
        return NotCoordinator(f"this broker no longer leads {self.partition.tp}")


def committed(
    partition: LeaderPartition, end: Offset, timeout_s: float = COMMIT_S
) -> "asyncio.Future[None]":
    """A future that is done when the partition is committed up to `end`.

    It fails when that can no longer happen, or has not within the timeout.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if partition.is_settled(end, ACKS_ALL):
        future.set_result(None)
        return future

    def settle(error: ApiError | None) -> None:
        timer.cancel()
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    timer = future.get_loop().call_later(
        timeout_s, settle, RequestTimedOut(f"{partition.tp} did not commit in {timeout_s:.0f} s")
    )
    partition.wait_settled(end, ACKS_ALL, settle)
    return future


def _seal(packed: Packed, producer: ProducerIdentity, partition: LeaderPartition) -> bytearray:
    """A batch of a producer's transaction."""
    # Only this shard writes for the producer here, so its next sequence is what the log expects.
    known = partition.log.producers.get(producer.id)
    sequence = known.next_sequence if known is not None and known.epoch == producer.epoch else 0
    return seal(
        packed,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=SequenceNumber(sequence),
        is_transactional=True,
    )


def _entries(
    header: batches.BatchHeader, view: memoryview, bytes_max: int
) -> Iterator[Entry | TransactionEnded]:
    producer = None
    if header.is_transactional:
        producer = ProducerIdentity(
            ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        )
    if not header.is_control:
        for record in batches.records(view, decompressed_bytes_max=bytes_max):
            yield Entry(record.key, record.value, producer)
    elif producer is not None and (marker := batches.read_marker(view)) is not None:
        yield TransactionEnded(producer, marker.kind is batches.MarkerKind.COMMIT)
