"""A pass of compaction over one log: read the keys, then copy the records that stay.

A pass reads the dirty end of a log and remembers the last offset of every key it meets, then
copies the log from its start without the records that have a later one. Of what it has just read
it knows where the last records are: a batch without any is dropped by its header. Offsets never
change, so a log becomes one with gaps:

* a batch that keeps all its records is copied as it is;
* one that loses some keeps its offsets, its producer's numbers and its codec;
* one that loses all goes, unless its offsets are needed. Then it stays, without records:
  the batches that show what a producer sent last, as the log knows them; the first batch of every
  leader epoch, because replicas compare where epochs begin; and the last batch of a segment, so
  that segments touch and their ends can be read off the files.

A tombstone (a record without value) outlives what it deletes: the first pass that meets it writes
the time when it may go into its batch (KIP-534), and a pass after that time drops it. The
marker of a transaction of which nothing is left goes the same way. Aborted records go at once.

A pass touches only sealed segments, which do not change, and files of its own: it runs on any
thread, while the log's owner goes on.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Final

from ottla.config import INT32_MAX
from ottla.errors import ApiError
from ottla.model import Offset, ProducerId, TimestampMs, TopicPartition
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    read_header,
)
from ottla.records.crc import crc32c
from ottla.records.record_slices import RecordSlice, empty_batch, payload_of, rebuild, slice_records
from ottla.storage.compaction import CleanedSegment, Counts, LiveProducer, SegmentFacts, fits
from ottla.storage.files import File, Files
from ottla.storage.index import AbortedTransaction
from ottla.storage.seals import Seal, write_cleaned_seal
from ottla.storage.segment import CLEANED, LOG, Indexes, file_name, write_cleaned_indexes
from ottla.storage.swap import remove_cleaned

_IS_TOMBSTONE: Final = itemgetter(5)

KEY_COST_BYTES: Final = 192  # of one remembered key: measured when its table grows
_RAW_KEY_BYTES_MAX: Final = 15  # longer keys are remembered by a digest, one byte longer than this
_DIGEST_BYTES: Final = 16
_READ_BYTES: Final = 1 << 20
_WRITE_BYTES: Final = 1 << 20
_RECORDS_PER_TURN: Final = 200  # between two pauses, in which the owner's thread gets its turn
_BYTES_PER_RECORD: Final = 4096  # that cost as much as one more record
_RUNS_MAX: Final = 1 << 20  # of offsets that are distinguished when looking for last records


class SegmentDamaged(Exception):
    """A segment that is to be compacted is not what was written: leave the log alone."""


class LastOffsets:
    """The offsets of the last records of keys, in little memory.

    Offsets are taken together in runs: `has_any` may be True by mistake, and never False.
    """

    __slots__ = ("_runs", "_shift", "_start")

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._shift = ((end - start) // _RUNS_MAX).bit_length()
        self._runs = bytearray(((end - start) >> self._shift) + 1)

    def add(self, offset: int) -> None:
        self._runs[(offset - self._start) >> self._shift] = 1

    def has_any(self, first: int, last: int) -> bool:
        """True when a last record may be at `first`, at `last`, or between them."""
        run = (first - self._start) >> self._shift
        return self._runs.find(1, run, ((last - self._start) >> self._shift) + 1) >= 0


@dataclass(slots=True, kw_only=True)
class Pass:
    """The state of one compaction of one log, group by group.

    Made by the owner, then used by one thread at a time: `run_next` on the worker's, everything
    else on the owner's between two runs.
    """

    tp: TopicPartition
    directory: Path
    timeline: int
    segments: tuple[SegmentFacts, ...]  # everything sealed, from the start of the log to `end`
    dirty_start: Offset
    end: Offset  # lowered when memory is full before everything dirty has been read
    aborted: tuple[AbortedTransaction, ...]
    producers: Mapping[ProducerId, LiveProducer]
    now_ms: TimestampMs
    delete_retention_ms: int
    segment_bytes_max: int
    index_interval_bytes: int
    decompressed_bytes_max: int
    memory_bytes_max: int
    counts: Counts = field(default_factory=Counts)
    last_offsets: dict[bytes, int] = field(default_factory=dict)  # of every key that is dirty
    _aborted_by_producer: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    _last_runs: LastOffsets | None = None  # None when headers do not bound the offsets of records
    _left: deque[SegmentFacts] | None = None  # still to be copied
    _sources: list[File] = field(default_factory=list)  # of the segment that was written last
    _seen: set[int] = field(default_factory=set)  # producers with data since their last marker
    _leader_epoch: int | None = None  # of the batch before
    _work_left: int = 0  # until the next pause

    def run_next(self, files: Files, pause: Callable[[], None]) -> CleanedSegment | None:
        """Write the next segment; None when there is no other. `pause` is called often."""
        # By now they have been replaced. Closing them for the last time frees their pages, which
        # takes too long for the owner's thread.
        self._sources.clear()
        if self._left is None:
            self._index_aborted()
            self._read_keys(files, pause)
            wanted = (segment for segment in self.segments if segment.base_offset < self.end)
            self._left = deque(wanted)
        while self._left:
            cleaned = self._write_segment(files, self._left, pause)
            if cleaned is not None:
                return cleaned
            remove_cleaned(files, self.directory)
            self._sources.clear()
        return None

    def _index_aborted(self) -> None:
        for one in sorted(self.aborted, key=lambda one: one.first_offset):
            firsts, lasts = self._aborted_by_producer.setdefault(one.producer_id, ([], []))
            firsts.append(one.first_offset)
            lasts.append(one.last_offset)

    def _is_aborted(self, header: BatchHeader) -> bool:
        known = self._aborted_by_producer.get(header.producer_id)
        if known is None or not header.attributes & TRANSACTIONAL:
            return False
        at = bisect_right(known[0], header.base_offset) - 1
        return at >= 0 and header.base_offset <= known[1][at]

    def _take_turn(self, work: int, pause: Callable[[], None]) -> None:
        self._work_left -= work
        if self._work_left <= 0:
            pause()
            self._work_left = _RECORDS_PER_TURN

    # Reading keys

    def _read_keys(self, files: Files, pause: Callable[[], None]) -> None:
        keys_max = self.memory_bytes_max // KEY_COST_BYTES
        dirty = [segment for segment in self.segments if segment.end_offset > self.dirty_start]
        is_orderly = True
        for batch, header in self._dirty_batches(files, dirty):
            if not header.attributes & CONTROL and not self._is_aborted(header):
                is_orderly &= self._note_keys(batch, header)
            self._take_turn(_work_of(header), pause)
            if len(self.last_offsets) >= keys_max:
                self.end = header.next_offset
                break
        if is_orderly and dirty:
            self._last_runs = LastOffsets(dirty[0].base_offset, self.end)
            for offset in self.last_offsets.values():
                self._last_runs.add(offset)
                self._take_turn(1, pause)

    def _dirty_batches(
        self, files: Files, dirty: list[SegmentFacts]
    ) -> Iterator[tuple[memoryview, BatchHeader]]:
        for segment in dirty:
            file = files.open(self.directory / file_name(segment.base_offset, LOG))
            for batch, header in _batches(file, segment.size_bytes):
                if header.last_offset >= self.dirty_start:
                    yield batch, header

    def _note_keys(self, batch: memoryview, header: BatchHeader) -> bool:
        """Remember a batch's keys; False unless all of its records are where its header says."""
        last_offsets = self.last_offsets
        base_offset, last_delta = header.base_offset, header.last_offset_delta
        _, slices = self._slices(batch, header)
        is_orderly = len(slices) == header.record_count
        for _, _, _, delta, key, _ in slices:
            if not 0 <= delta <= last_delta:
                is_orderly = False
            if key is not None:
                short = key if len(key) <= _RAW_KEY_BYTES_MAX else _digest(key)
                last_offsets[short] = base_offset + delta
        return is_orderly

    def _slices(self, batch: memoryview, header: BatchHeader) -> tuple[bytes, list[RecordSlice]]:
        """The payload and records of a batch; no records if they cannot be read."""
        try:
            payload = payload_of(batch, header, self.decompressed_bytes_max)
            return payload, slice_records(payload, header.record_count)
        except ApiError:
            return b"", []

    # Writing segments

    def _write_segment(
        self, files: Files, left: deque[SegmentFacts], pause: Callable[[], None]
    ) -> CleanedSegment | None:
        """A segment made of those that are left, as many of them as it takes to fill it.

        None when it is a copy of one, and a swap not worth it.
        """
        base_offset = left[0].base_offset
        path = self.directory / file_name(base_offset, LOG + CLEANED)
        out = _Output(files.create(path), base_offset, self.index_interval_bytes)
        group: list[SegmentFacts] = []
        gone_markers: set[int] = set()
        while left and fits(group, out.size_bytes, left[0], self.segment_bytes_max):
            group.append(left.popleft())
            self._copy_segment(files, group[-1], out, gone_markers, pause)
        end_offset = group[-1].end_offset
        out.indexes.aborted = [
            one
            for one in self.aborted
            if base_offset <= one.last_offset < end_offset and one.last_offset not in gone_markers
        ]
        out.finish()
        write_cleaned_indexes(files, self.directory, base_offset, out.indexes)
        seal = Seal.of(end_offset, out.size_bytes, out.indexes)
        write_cleaned_seal(files, self.directory, base_offset, seal)
        files.sync_dir(self.directory)
        self.counts.written_bytes += out.size_bytes
        if not out.is_changed and len(group) == 1:
            return None
        return CleanedSegment(tuple(group), out.size_bytes, out.indexes.max_timestamp_ms)

    def _copy_segment(
        self,
        files: Files,
        segment: SegmentFacts,
        out: "_Output",
        gone_markers: set[int],
        pause: Callable[[], None],
    ) -> None:
        file = files.open(self.directory / file_name(segment.base_offset, LOG))
        self._sources.append(file)
        self.counts.read_bytes += segment.size_bytes
        for batch, header in _batches(file, segment.size_bytes):
            kept = self._kept(batch, header)
            if header.attributes & CONTROL and _is_empty(kept):
                gone_markers.add(header.base_offset)
            out.append(kept, batch, header)
            self._take_turn(1 if self._is_outlived(header) else _work_of(header), pause)

    def _kept(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        """The rest of a batch: the batch itself, a smaller one, an empty one, or nothing."""
        begins_epoch = header.leader_epoch != self._leader_epoch
        self._leader_epoch = header.leader_epoch
        if header.base_offset >= self.end:
            return batch
        if header.attributes & CONTROL:
            left = self._marker_left(batch, header)
        else:
            left = self._data_left(batch, header)
        if left is not None:
            return left
        if self._is_last_of_producer(header):
            return _emptied(batch, header, keeps_producer=True)
        return _emptied(batch, header, keeps_producer=False) if begins_epoch else None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """True when only this batch shows what its producer sent last."""
        live = self.producers.get(ProducerId(header.producer_id))
        if live is None or live.epoch != header.producer_epoch:
            return False
        if header.attributes & CONTROL:
            return not live.base_offsets
        return header.base_offset in live.base_offsets

    def _marker_left(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        if header.producer_id < 0:
            return batch  # it ends no transaction: whatever it is, it is not ours to drop
        has_data = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        if not header.record_count:
            return None
        if has_data or self._is_last_of_producer(header):
            return batch
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is not None:
            return batch if self.now_ms < horizon_ms else None
        payload, slices = self._slices(batch, header)
        return self._with_horizon(header, payload, slices) if slices else batch

    def _data_left(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        if header.attributes & TRANSACTIONAL:
            self._seen.add(header.producer_id)
        if not header.record_count:
            return None
        if self._is_aborted(header) or self._is_outlived(header):
            self.counts.dropped_records += header.record_count
            return None
        payload, slices = self._slices(batch, header)
        if not slices:
            self.counts.kept_records += header.record_count
            return batch
        horizon_ms = header.delete_horizon_ms
        is_past = horizon_ms is not None and self.now_ms >= horizon_ms
        kept = self._last_of_keys(header.base_offset, slices)
        has_tombstones = any(map(_IS_TOMBSTONE, kept))
        if has_tombstones and is_past:
            count = len(kept)
            kept = [one for one in kept if not _IS_TOMBSTONE(one)]
            self.counts.dropped_tombstones += count - len(kept)
            has_tombstones = False
        self.counts.kept_records += len(kept)
        self.counts.dropped_records += len(slices) - len(kept)
        if not kept:
            return None
        if has_tombstones and horizon_ms is None:
            return self._with_horizon(header, payload, kept)
        return batch if len(kept) == len(slices) else rebuild(header, payload, kept)

    def _is_outlived(self, header: BatchHeader) -> bool:
        """True when the keys of a batch were read, and it holds the last record of none."""
        if self._last_runs is None or header.last_offset < self.dirty_start:
            return False
        return not self._last_runs.has_any(header.base_offset, header.last_offset)

    def _last_of_keys(self, base_offset: int, slices: list[RecordSlice]) -> list[RecordSlice]:
        """The records that no later one replaces. Records without a key are dropped."""
        last_offset_of = self.last_offsets.get
        kept = []
        for one in slices:
            key = one[4]
            if key is not None:
                if len(key) > _RAW_KEY_BYTES_MAX:
                    key = _digest(key)
                if last_offset_of(key, -1) <= base_offset + one[3]:
                    kept.append(one)
        return kept

    def _with_horizon(
        self, header: BatchHeader, payload: bytes, slices: list[RecordSlice]
    ) -> bytearray:
        horizon_ms = TimestampMs(self.now_ms + self.delete_retention_ms)
        return rebuild(header, payload, slices, delete_horizon_ms=horizon_ms)


class _Output:
    """A segment being written: its file, fed in large pieces, and its indexes."""

    def __init__(self, file: File, base_offset: Offset, interval_bytes: int) -> None:
        self.indexes = Indexes()
        self.size_bytes = 0
        self.is_changed = False
        self._file = file
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._waiting = bytearray()
        self._dropped: tuple[memoryview, BatchHeader] | None = None  # if it was the last one

    def append(self, kept: Buffer | None, batch: memoryview, header: BatchHeader) -> None:
        """Add what is left of a batch, perhaps nothing."""
        if self._dropped is not None:
            self.is_changed = True
            self._dropped = None
        if kept is None:
            self._dropped = batch, header
            return
        size_bytes = len(kept)
        if self.size_bytes + size_bytes > INT32_MAX:
            raise SegmentDamaged("compressed anew, the segment outgrows what an index can say")
        max_timestamp_ms = header.max_timestamp_ms
        if kept is not batch:
            self.is_changed = True
            max_timestamp_ms = read_header(kept).max_timestamp_ms
        self.indexes.note(
            self.size_bytes,
            size_bytes,
            header.last_offset - self._base_offset,
            max_timestamp_ms,
            self._interval_bytes,
        )
        self.size_bytes += size_bytes
        self._waiting += kept
        if len(self._waiting) >= _WRITE_BYTES:
            self._write()

    def finish(self) -> None:
        """Write the rest. The last batch stays, if only empty: it has the segment's end."""
        if self._dropped is not None:
            batch, header = self._dropped
            self._dropped = None
            self.append(_emptied(batch, header, keeps_producer=False), batch, header)
        self._write()
        self._file.sync()
        self.indexes.finish()

    def _write(self) -> None:
        self._file.append(self._waiting)
        self._waiting = bytearray()


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _work_of(header: BatchHeader) -> int:
    """The share of a turn that reading a batch's records takes."""
    return header.record_count + header.size_bytes // _BYTES_PER_RECORD


def _emptied(batch: memoryview, header: BatchHeader, *, keeps_producer: bool) -> Buffer:
    """A batch without records at the same offsets; the batch itself if it is one already."""
    left = empty_batch(header, keeps_producer=keeps_producer)
    return batch if left == batch else left


def _is_empty(batch: Buffer | None) -> bool:
    return batch is None or not read_header(batch).record_count


def _batches(file: File, size_bytes: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Every batch of a segment, which must be as it was written: nothing is copied unchecked."""
    start = 0
    batch_bytes = 0  # of the next batch, once it is known not to fit into an ordinary read
    while start < size_bytes:
        wanted_bytes = min(max(_READ_BYTES, batch_bytes), size_bytes - start)
        chunk = memoryview(file.read(start, wanted_bytes))
        at = batch_bytes = 0
        while len(chunk) - at >= HEADER_BYTES:
            header = read_header(chunk, at)
            if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
                raise SegmentDamaged(f"no record batch at byte {start + at}")
            behind = at + header.size_bytes
            if behind > len(chunk):
                batch_bytes = header.size_bytes
                break
            if crc32c(chunk[at + ATTRIBUTES_AT : behind]) != header.crc:
                raise SegmentDamaged(f"the CRC of the batch at byte {start + at} does not match")
            yield chunk[at:behind], header
            at = behind
        if not at and (len(chunk) < wanted_bytes or wanted_bytes == size_bytes - start):
            raise SegmentDamaged(f"the segment ends inside the batch at byte {start}")
        start += at
