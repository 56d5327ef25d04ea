"""The segments of one log: which there are, which of them are open, and how they come and go.

Sealed segments are opened when they are read, and few of them stay open. Two kinds stay open for
another reason: those that were just sealed, whose indexes are on disk only after the next
flush, and those that a compacted segment is about to replace, whose names are a worker's until it
has. Owned by the log, and called from its owner's thread only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ottla.errors import CorruptBatch
from ottla.model import Offset, Position, TimestampMs
from ottla.records.batch import HEADER_BYTES, BatchHeader, read_header
from ottla.storage.disk_worker import Errand
from ottla.storage.files import File, Files
from ottla.storage.index import AbortedDamaged, AbortedTransaction, IndexDamaged, aborted_crc
from ottla.storage.recovery_scan import rebuild_indexes, report_aborted
from ottla.storage.seals import Seal, begin_seal, read_seal, store_sealed, write_seal
from ottla.storage.segment import (
    DELETED,
    LOG,
    SIDE_SUFFIXES,
    ActiveSegment,
    FoundBatch,
    SealedSegment,
    Segment,
    UnsyncedFile,
    begin_indexes,
    file_name,
    file_path,
    find_batch,
    find_boundary,
    load_aborted,
    write_indexes,
)
from ottla.storage.swap import Swap, carry_out

UNSTORED_MAX: Final = 4  # sealed segments that stay open until they are flushed
_WARM_MAX: Final = 8  # sealed segments that stay open because they were read


class Discarded(NamedTuple):
    """A file that is to be removed by a thread that has the time: large ones take a while.

    The last close of a removed file frees its pages, so the descriptor goes with the name.
    """

    files: Files
    path: Path
    file: File | None

    def remove(self) -> None:
        """On any thread. If this never happens, the next start does it.

        As long as this file is there, it shows that its segment was not lost: what lay beside the
        segment has to be gone first.
        """
        with suppress(FileNotFoundError):  # the whole log may have been deleted meanwhile
            self.files.sync_dir(self.path.parent)
        self.files.unlink(self.path)


class Unstored(NamedTuple):
    """A sealed segment with indexes in memory only: it stays open until they are on disk."""

    segment: SealedSegment
    indexes: Sequence[UnsyncedFile]
    errand: Errand


class Segments:
    """All segments of a log, in order: the sealed ones, and the active one behind them."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        sealed: list[SealedSegment],
        active: ActiveSegment,
        *,
        interval_bytes: int,
        before_open: Callable[[], None],
    ) -> None:
        self.sealed = sealed
        self.active = active
        self.unstored: list[Unstored] = []
        self._files = files
        self._directory = directory
        self._interval_bytes = interval_bytes  # of indexes that have to be made again
        self._before_open = before_open  # makes room for one more file
        self._let_reopen(active)
        self._bases = [segment.base_offset for segment in sealed]
        self._warm: list[SealedSegment] = []
        self._swap: Swap | None = None  # whose old segments are not deleted, but replaced

    # Finding

    @property
    def first_base(self) -> Offset:
        return self._bases[0] if self._bases else self.active.base_offset

    def all(self) -> list[Segment]:
        return [*self.sealed, self.active]

    def of(self, offset: Offset) -> Segment:
        """The segment that an offset is in, opened."""
        if offset >= self.active.base_offset:
            return self.active
        segment = self.sealed[max(0, bisect_right(self._bases, offset) - 1)]
        self.open(segment)
        return segment

    def find(self, segment: Segment, offset: Offset) -> FoundBatch:
        """The batch of an open segment that holds `offset`, or the first behind it."""
        try:
            found = find_batch(segment, offset)
        except CorruptBatch:
            if not isinstance(segment, SealedSegment):
                raise
            self._rebuild_indexes(segment, segment.indexes.aborted)
            found = find_batch(segment, offset)
        if found is None:
            raise CorruptBatch(f"offset {offset} is missing on this broker's disk")
        return found

    def boundary(self, segment: Segment, position: Position, end: int) -> tuple[Position, Offset]:
        """The end of the last batch that lies wholly before byte `end`, and the offset behind."""
        try:
            return find_boundary(segment, position, end)
        except CorruptBatch:
            if not isinstance(segment, SealedSegment):
                raise
            self._rebuild_indexes(segment, segment.indexes.aborted)
            return find_boundary(segment, position, end)

    def header_at(self, offset: Offset) -> BatchHeader:
        segment = self.of(offset)
        position = self.find(segment, offset).position
        return read_header(segment.file.read(position, HEADER_BYTES))

    def max_timestamp_of(self, segment: SealedSegment) -> TimestampMs:
        if segment.max_timestamp_ms is None:
            self.open(segment)
            segment.max_timestamp_ms = segment.indexes.max_timestamp_ms
        return segment.max_timestamp_ms

    def newest_ms_of(self, segment: Segment) -> TimestampMs:
        """The largest timestamp, or when the file was last written if no record has one."""
        if isinstance(segment, ActiveSegment):
            newest_ms = segment.indexes.max_timestamp_ms
        else:
            newest_ms = self.max_timestamp_of(segment)
        if newest_ms < 0:
            self.open(segment)
            newest_ms = TimestampMs(segment.file.modified_ms())
        return newest_ms

    # Opening

    def open(self, segment: Segment) -> None:
        """Make a segment readable, and let the one go that was opened longest ago."""
        if isinstance(segment, SealedSegment) and not segment.is_warm:
            self._load(segment)
            self._note_warm(segment)

    def aborted_of(self, segment: Segment) -> list[AbortedTransaction]:
        """A segment's aborted transactions. One that is not open stays so, if they are intact."""
        if isinstance(segment, SealedSegment) and not segment.is_warm:
            base = segment.base_offset
            with suppress(AbortedDamaged):
                found = load_aborted(self._files, self._directory, base, self._aborted_crc(base))
                segment.has_no_aborted = not found
                return found
            self.open(segment)
        return segment.indexes.aborted

    def aborted_between(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of `start` to `end` has to skip.

        The marker of one may be in any later segment: those that have none are remembered.
        """
        found = []
        first = max(0, bisect_right(self._bases, start) - 1)
        later: list[Segment] = [*self.sealed[first:], self.active]
        for segment in later:
            if isinstance(segment, SealedSegment) and segment.has_no_aborted:
                continue
            for item in self.aborted_of(segment):
                if item.last_offset >= start and item.first_offset < end:
                    found.append(item)
                if item.last_stable_offset >= end:
                    return found
        return found

    def _aborted_crc(self, base: Offset) -> int | None:
        seal = read_seal(self._files, self._directory, base)
        return seal.aborted_crc if seal is not None else None

    def _load(self, segment: SealedSegment) -> None:
        self._before_open()
        try:
            segment.open(self._files, self._aborted_crc(segment.base_offset))
        except AbortedDamaged as damage:
            report_aborted(self._directory, segment.base_offset, damage)
            self._rebuild_indexes(segment, None)
        except IndexDamaged:
            base = segment.base_offset
            crc = self._aborted_crc(base)
            self._rebuild_indexes(segment, load_aborted(self._files, self._directory, base, crc))

    def _rebuild_indexes(
        self, segment: SealedSegment, aborted: list[AbortedTransaction] | None
    ) -> None:
        """Read the segment's indexes off its batches; also what was aborted, unless it is known."""
        before = self.sealed[: bisect_left(self._bases, segment.base_offset)]
        indexes = rebuild_indexes(self._files, segment, before, self._interval_bytes)
        if aborted is not None:
            indexes.aborted = aborted
        segment.warm_up(segment.file, indexes)
        if not self.is_swapped(segment):
            self.store_indexes()
            write_indexes(self._files, self._directory, segment.base_offset, indexes)
            if aborted is None:
                self._seal_again(segment)

    def _seal_again(self, segment: SealedSegment) -> None:
        """Write the seal with the checksum of the aborted transactions as they were found now."""
        base = segment.base_offset
        seal = read_seal(self._files, self._directory, base)
        if seal is not None:
            crc = aborted_crc(segment.indexes.aborted)
            write_seal(self._files, self._directory, base, seal._replace(aborted_crc=crc))

    def _let_reopen(self, active: ActiveSegment) -> None:
        """Say how the file is opened, without holding on to anything that holds the segment."""
        path = file_path(self._directory, active.base_offset, LOG)
        active.reopen = partial(_reopen, self._files, path, self._before_open)

    def _note_warm(self, segment: SealedSegment) -> None:
        self._warm.append(segment)
        if len(self._warm) > _WARM_MAX:
            self._warm.pop(0).cool_down()

    def release(self) -> bool:
        """Close every file that can be opened again; False if any has to stay open.

        To be called when everything is on disk.
        """
        for segment in self._warm:
            segment.cool_down()
        self._warm.clear()
        self.active.release()
        return not self.unstored and self._swap is None

    def close(self) -> None:
        """Close every file: the log is not used any more."""
        for segment in self.sealed:
            segment.cool_down()
        self._warm.clear()
        self.unstored.clear()
        self.active.release()

    def take_files(self) -> list[File]:
        """Every open file. With the last reference to a removed one, its pages are freed."""
        files = [segment.file for segment in self.sealed if segment.is_warm]
        files += self.active.take_file()
        self.close()
        return files

    # Sealing

    def roll(self, now_ms: TimestampMs) -> SealedSegment:
        """End the active segment and begin the next. Waits for no disk: see `Unstored`."""
        assert self.active.size_bytes, "only a segment with batches is sealed"
        sealed = self.active.seal()
        base_offset = sealed.base_offset
        seal = Seal.of(sealed.end_offset, sealed.size_bytes, sealed.indexes)
        begun = begin_indexes(self._files, self._directory, base_offset, sealed.indexes)
        begun.append(begin_seal(self._files, self._directory, base_offset, seal))
        self._before_open()
        # Last, for what came before can be done again: nothing has begun until this file exists.
        try:
            file = self._files.create(file_path(self._directory, sealed.end_offset, LOG))
        except OSError:
            for unsynced in begun:
                unsynced.remove(self._files)
            raise
        errand = Errand(partial(store_sealed, self._files, self._directory, sealed.file, begun))
        self.unstored.append(Unstored(sealed, begun, errand))
        self.sealed.append(sealed)
        self._bases.append(sealed.base_offset)
        self.active = ActiveSegment(self._directory, sealed.end_offset, file, now_ms)
        self._let_reopen(self.active)
        return sealed

    def store_indexes(self) -> None:
        """Have all indexes on disk, now."""
        for one in self.unstored:
            one.errand.run()
        self.note_stored(tuple(self.unstored))

    def note_stored(self, stored: Sequence[Unstored]) -> None:
        """The indexes of these segments are on disk: they may be closed."""
        for one in stored:
            if one in self.unstored:
                self.unstored.remove(one)
                self._note_warm(one.segment)

    # Deleting

    def delete_first(
        self, count: int, discard: Callable[[Discarded], None]
    ) -> Sequence[SealedSegment]:
        """Delete so many segments, but for those that are just being replaced; which ones went."""
        if self._swap is not None:
            count = min(count, bisect_left(self._bases, self._swap.new.base_offset))
        deleted = self.sealed[:count]
        for segment in deleted:
            discard(self._delete(segment))
        del self.sealed[:count], self._bases[:count]
        return deleted

    def _delete(self, segment: SealedSegment) -> Discarded:
        assert not self.is_swapped(segment), "its names are the worker's until the swap has ended"
        file = segment.file if segment.is_warm else None
        if segment in self._warm:
            self._warm.remove(segment)
        self._forget_unstored(segment)
        for suffix in SIDE_SUFFIXES:
            self._files.unlink(self._directory / file_name(segment.base_offset, suffix))
        path = self._directory / file_name(segment.base_offset, LOG)
        aside = path.with_name(path.name + DELETED)
        self._files.rename(path, aside)
        return Discarded(self._files, aside, file)

    def _forget_unstored(self, segment: SealedSegment) -> None:
        for one in [one for one in self.unstored if one.segment is segment]:
            one.errand.give_up()
            for unsynced in one.indexes:
                unsynced.remove(self._files)
            self.unstored.remove(one)

    # Replacing

    def begin_swap(self, old: Sequence[SealedSegment], new: SealedSegment) -> Swap:
        """Prepare to replace segments by the compacted one that was made from them.

        Until `end_swap` the old ones are read through the files that are open now: their names
        are the worker's. Readers of them can finish even then.
        """
        assert self._swap is None, "one swap at a time"
        assert (old[0].base_offset, old[-1].end_offset) == (new.base_offset, new.end_offset), (
            "the new segment touches what the old ones touch"
        )
        assert not any(one.segment in old for one in self.unstored), (
            "a flush would give an old segment's indexes to the new one"
        )
        self._warm = [segment for segment in self._warm if segment not in old]
        for segment in old:
            self._load(segment)  # however many: none may be closed before it is replaced
        bases = [segment.base_offset for segment in old]
        errand = Errand(partial(carry_out, self._files, self._directory, bases))
        self._swap = Swap(old, new, errand)
        return self._swap

    def end_swap(self, swap: Swap) -> bool:
        """The swap has been carried out: read the new segment. False if that was done before."""
        if swap is not self._swap:
            return False  # `finish_swap` was faster
        self._swap = None
        at = bisect_left(self._bases, swap.new.base_offset)
        assert self.sealed[at : at + len(swap.old)] == list(swap.old), "replaced where they were"
        self.sealed[at : at + len(swap.old)] = [swap.new]
        self._bases[at : at + len(swap.old)] = [swap.new.base_offset]
        return True

    def finish_swap(self) -> Swap | None:
        """Carry out what is left of a swap, now; which one, if there was any."""
        swap = self._swap
        if swap is not None:
            swap.errand.run()
        return swap

    def give_up_swap(self) -> None:
        """The log is about to be deleted: compaction may not touch its files any more."""
        if self._swap is not None:
            self._swap.errand.give_up()

    @property
    def is_swapping(self) -> bool:
        """True while a compacted segment takes the place of others."""
        return self._swap is not None

    def is_swapped(self, segment: Segment) -> bool:
        return self._swap is not None and segment in self._swap.old

    def same_as(self, facts: list[tuple[Offset, Offset, int]]) -> Sequence[SealedSegment]:
        """The segments with these bases, ends and sizes; none unless all of them are here."""
        at = bisect_left(self._bases, facts[0][0])
        found = self.sealed[at : at + len(facts)]
        are_same = [(one.base_offset, one.end_offset, one.size_bytes) for one in found] == facts
        return found if are_same else ()


def _reopen(files: Files, path: str, before_open: Callable[[], None]) -> File:
    before_open()
    return files.open(path)
