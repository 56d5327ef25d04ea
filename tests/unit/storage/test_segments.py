"""The segments of a log: found, sealed, deleted and replaced."""

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.errors import CorruptBatch
from ottla.model import Offset, Position
from ottla.storage.files import File
from ottla.storage.segment import LOG, ActiveSegment, SealedSegment, file_path
from ottla.storage.segments import UNSTORED_MAX, Discarded, Segments

BATCHES = 3
INTERVAL_BYTES = 100


def make(files: MemoryFiles, sealed: int = 0, *, is_stored: bool = True) -> Segments:
    """So many sealed segments of three batches each, and an active one with as many."""
    files.make_dir(build.DIRECTORY)
    first = files.create(file_path(build.DIRECTORY, Offset(0), LOG))
    active = ActiveSegment(build.DIRECTORY, Offset(0), first, build.NOW_MS)
    segments = Segments(
        files,
        build.DIRECTORY,
        [],
        active,
        interval_bytes=INTERVAL_BYTES,
        before_open=lambda: None,
    )
    fill(segments)
    for _ in range(sealed):
        segments.roll(build.NOW_MS)
        fill(segments)
    if is_stored:
        segments.store_indexes()
    return segments


def fill(segments: Segments) -> None:
    for _ in range(BATCHES):
        offset = segments.active.end_offset
        batch = build.batch(base_offset=offset)
        segments.active.append(batch, offset, build.NOW_MS, INTERVAL_BYTES)


def logs(files: MemoryFiles) -> list[str]:
    return [name for name in files.names(build.DIRECTORY) if LOG in name]


def merged(old: list[SealedSegment]) -> SealedSegment:
    return SealedSegment(build.DIRECTORY, old[0].base_offset, old[-1].end_offset, 100)


def test_segments_touch_and_do_not_overlap(files: MemoryFiles) -> None:
    segments = make(files, 4)
    ends = [segment.end_offset for segment in segments.sealed]
    assert [segment.base_offset for segment in segments.all()] == [0, *ends]
    assert segments.first_base == 0


def test_an_offset_is_found_in_its_segment(files: MemoryFiles) -> None:
    segments = make(files, 2)
    for offset in range(3 * BATCHES):
        segment = segments.of(Offset(offset))
        assert segment.base_offset == offset // BATCHES * BATCHES
        assert segments.find(segment, Offset(offset)).base_offset == offset
        assert segments.header_at(Offset(offset)).base_offset == offset


def test_an_offset_that_no_batch_has_is_missing(files: MemoryFiles) -> None:
    segments = make(files)
    with pytest.raises(CorruptBatch, match="missing"):
        segments.find(segments.active, Offset(BATCHES))


def test_only_a_segment_with_batches_is_sealed(files: MemoryFiles) -> None:
    segments = make(files)
    segments.roll(build.NOW_MS)
    with pytest.raises(AssertionError, match="with batches"):
        segments.roll(build.NOW_MS)


def test_a_sealed_segment_stays_open_until_its_indexes_are_stored(files: MemoryFiles) -> None:
    segments = make(files, UNSTORED_MAX, is_stored=False)
    assert not segments.release()
    assert all(segment.is_warm for segment in segments.sealed)
    segments.store_indexes()
    assert segments.release()
    assert not any(segment.is_warm for segment in segments.sealed)


def test_the_oldest_are_deleted_and_the_rest_is_found(files: MemoryFiles) -> None:
    segments = make(files, 3)
    discarded: list[Discarded] = []
    assert len(segments.delete_first(2, discarded.append)) == 2
    assert segments.first_base == 2 * BATCHES
    assert [one.path.name for one in discarded] == [
        f"{0:020d}.log.deleted",
        f"{BATCHES:020d}.log.deleted",
    ]
    for one in discarded:
        one.remove()
    assert len(logs(files)) == 2
    assert segments.header_at(Offset(2 * BATCHES)).base_offset == 2 * BATCHES


def test_what_is_being_replaced_is_not_deleted(files: MemoryFiles) -> None:
    segments = make(files, 3)
    old = segments.sealed[1:3]
    swap = segments.begin_swap(old, merged(old))
    assert all(map(segments.is_swapped, old))
    assert len(segments.delete_first(3, lambda discarded: None)) == 1
    assert segments.sealed == old
    assert segments.end_swap(swap)
    assert segments.sealed == [swap.new]
    assert not segments.end_swap(swap), "it is known"


def test_replaced_segments_are_read_through_open_files(files: MemoryFiles) -> None:
    segments = make(files, 10)
    segments.release()
    swap = segments.begin_swap(segments.sealed[:10], merged(segments.sealed[:10]))
    kept: list[File] = [segment.file for segment in swap.old]
    assert not segments.release()
    assert [segment.file for segment in swap.old] == kept


def test_a_swap_that_the_owner_has_not_ended_blocks_the_next(files: MemoryFiles) -> None:
    segments = make(files, 3)
    segments.begin_swap(segments.sealed[:1], merged(segments.sealed[:1]))
    with pytest.raises(AssertionError, match="one swap"):
        segments.begin_swap(segments.sealed[1:2], merged(segments.sealed[1:2]))


def test_a_new_segment_covers_what_it_replaces(files: MemoryFiles) -> None:
    segments = make(files, 3)
    with pytest.raises(AssertionError, match="touches"):
        segments.begin_swap(segments.sealed[:2], merged(segments.sealed[:1]))


def test_a_segment_whose_indexes_are_not_stored_is_not_replaced(files: MemoryFiles) -> None:
    segments = make(files, 1, is_stored=False)
    with pytest.raises(AssertionError, match="flush"):
        segments.begin_swap(segments.sealed, merged(segments.sealed))


def test_only_segments_that_are_all_here_are_the_same(files: MemoryFiles) -> None:
    segments = make(files, 3)
    facts = [(one.base_offset, one.end_offset, one.size_bytes) for one in segments.sealed[1:]]
    assert segments.same_as(facts) == segments.sealed[1:]
    assert segments.same_as([*facts, (Offset(99), Offset(100), 1)]) == ()
    assert segments.same_as([(facts[0][0], facts[0][1], 1)]) == ()


def test_a_range_ends_at_a_batch(files: MemoryFiles) -> None:
    segments = make(files)
    size_bytes = len(build.batch())
    for end in (size_bytes, size_bytes + 1, 2 * size_bytes - 1):
        assert segments.boundary(segments.active, Position(0), end) == (size_bytes, 1)
