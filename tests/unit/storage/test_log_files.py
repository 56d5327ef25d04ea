"""The files of a log when it is opened: what was interrupted is finished, the rest is listed."""

from random import Random

import pytest

from fakes import build
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.model import Offset, Position
from ottla.storage.compaction import CLEAN_OFFSET_FILE
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, load_ranges
from ottla.storage.log_files import (
    LogFiles,
    begin_behind_loss,
    finish_deletions,
    finish_swaps,
    first_offset_of,
    list_files,
    snapshot_offsets,
    usable_snapshots,
)

DIRECTORY = build.DIRECTORY


def put(files: MemoryFiles, *names: str, content: bytes = b"") -> None:
    """Make files; a name that begins with a number has it written with all its digits."""
    files.make_dir(DIRECTORY)
    for name in names:
        base, dot, suffix = name.partition(".")
        full = f"{int(base):020d}{dot}{suffix}" if base.isdigit() and len(base) < 20 else name
        files.create(DIRECTORY / full).append(content)


def names(files: MemoryFiles) -> set[str]:
    """The names in the directory, with numbers as short as they can be."""
    short = set()
    for name in files.names(DIRECTORY):
        base, dot, suffix = name.partition(".")
        short.add(f"{int(base)}{dot}{suffix}" if base.isdigit() and len(base) == 20 else name)
    return short


def listed(files: MemoryFiles) -> LogFiles:
    return list_files(files, DIRECTORY, None)


def log_files(
    sizes: dict[int, int],
    *,
    seals: tuple[int, ...] = (),
    indexes: tuple[int, ...] = (),
    snapshots: tuple[int, ...] = (),
) -> LogFiles:
    return LogFiles(
        names=set(),
        sizes={Offset(base): size for base, size in sizes.items()},
        seals=[Offset(base) for base in seals],
        lost=[Offset(base) for base in seals if base not in sizes],
        indexes=[Offset(base) for base in indexes],
        snapshots=[Offset(offset) for offset in snapshots],
        is_compacted=False,
    )


# Listing


def test_files_are_listed_by_kind_and_offset(files: MemoryFiles) -> None:
    put(files, "0.log", "7.log", content=b"12345")
    put(files, "0.seal", "3.seal", "0.index", "7.index", "7.snapshot", CLEAN_OFFSET_FILE)
    found = listed(files)
    assert found.sizes == {0: 5, 7: 5}
    assert (found.seals, found.lost) == ([0, 3], [3])
    assert found.snapshots == [7]
    assert found.indexes == [], "segments say where the log begins"
    assert found.is_compacted
    assert found.names == set(files.names(DIRECTORY))


def test_without_segments_indexes_say_where_the_log_was(files: MemoryFiles) -> None:
    put(files, "4.index", "9.index", "9.timeindex")
    found = listed(files)
    assert (found.sizes, found.indexes) == ({}, [4, 9])
    assert not found.is_compacted


def test_names_that_are_not_ours_are_listed_as_no_segment(files: MemoryFiles) -> None:
    others = ["notes.log", "123456789012345678901.log", "+0000000000000000001.log", "0.log.bak"]
    put(files, "0.log", *others)
    found = listed(files)
    assert set(found.sizes) == {0}
    assert names(files) == {"0.log", *others}


def test_names_that_are_known_are_not_read_from_the_disk(files: MemoryFiles) -> None:
    put(files, "0.log")
    files.fail_next("list")
    assert set(list_files(files, DIRECTORY, [f"{0:020d}.log"]).sizes) == {0}
    assert files.has_faults


def test_listing_finishes_what_was_interrupted_first(files: MemoryFiles) -> None:
    put(files, "0.log.deleted", "0.index", "5.log", "9.log.cleaned")
    found = list_files(files, DIRECTORY, files.names(DIRECTORY))
    assert names(files) == {"5.log"}
    assert (set(found.sizes), found.names) == ({5}, {f"{5:020d}.log"})


# Where a log begins, and which snapshots count


def test_a_snapshot_counts_if_the_segment_before_it_has_a_seal() -> None:
    found = log_files({0: 9, 10: 9, 20: 9}, seals=(0,), snapshots=(0, 10, 15, 20, 25))
    assert usable_snapshots(found) == [0, 10, 15, 25], "the segment before 20 has none"


def test_a_log_begins_with_its_first_segment_or_with_what_shows_an_earlier_one() -> None:
    def first(found: LogFiles, start_offset: int = 0, lost: tuple[int, int] | None = None) -> int:
        ranges = []
        if lost is not None:
            ranges = [CorruptRange(Offset(lost[0]), Offset(lost[1]), Offset(0), Position(0))]
        return first_offset_of(found, Offset(start_offset), Offset(10), ranges)

    assert first(log_files({10: 1})) == 10
    assert first(log_files({10: 1}), start_offset=12) == 12, "deleted up to there"
    assert first(log_files({10: 1}, seals=(4, 10))) == 4, "a seal without its segment"
    assert first(log_files({10: 1}, seals=(4,)), start_offset=6) == 6
    assert first(log_files({}, indexes=(2,))) == 2
    assert first(log_files({10: 1}), lost=(7, 10)) == 7, "known to be lost right before"
    assert first(log_files({10: 1}), lost=(3, 8)) == 10, "lost somewhere else"


# A log that has lost all segments


def test_a_log_without_segments_goes_on_behind_its_known_end_and_notes_the_loss(
    files: MemoryFiles,
) -> None:
    put(files, "4.index")
    found = listed(files)
    begin_behind_loss(files, DIRECTORY, found, Offset(2), Offset(30))
    assert found.sizes == {30: 0}
    assert names(files) == {"4.index", "30.log", CORRUPT_FILE}
    assert load_ranges(files, DIRECTORY) == [
        CorruptRange(Offset(4), Offset(30), Offset(4), Position(0))
    ]
    assert CORRUPT_FILE in found.names, "so that the loss is loaded"


def test_where_nothing_shows_the_start_everything_from_the_start_offset_on_is_lost(
    files: MemoryFiles,
) -> None:
    files.make_dir(DIRECTORY)
    begin_behind_loss(files, DIRECTORY, listed(files), Offset(2), Offset(30))
    (lost,) = load_ranges(files, DIRECTORY)
    assert (lost.start_offset, lost.end_offset) == (2, 30)


def test_a_log_that_never_had_anything_has_lost_nothing(files: MemoryFiles) -> None:
    files.make_dir(DIRECTORY)
    begin_behind_loss(files, DIRECTORY, listed(files), Offset(7), Offset(0))
    assert names(files) == {"7.log"}


def test_a_loss_is_noted_beside_those_that_were_known(files: MemoryFiles) -> None:
    files.make_dir(DIRECTORY)
    begin_behind_loss(files, DIRECTORY, listed(files), Offset(0), Offset(10))
    files.unlink(DIRECTORY / f"{10:020d}.log")
    put(files, "10.index")
    begin_behind_loss(files, DIRECTORY, listed(files), Offset(0), Offset(25))
    ranges = load_ranges(files, DIRECTORY)
    assert [(one.start_offset, one.end_offset) for one in ranges] == [(0, 10), (10, 25)]


def test_whenever_the_machine_stops_a_loss_is_noted_before_a_segment_hides_it() -> None:
    stops = 0
    while True:
        files = MemoryFiles()
        files.make_dir(DIRECTORY)
        found = listed(files)
        files.stop_after = stops
        try:
            begin_behind_loss(files, DIRECTORY, found, Offset(0), Offset(10))
        except MachineStopped:
            after = files.kill()
            if "10.log" in names(after):
                assert load_ranges(after, DIRECTORY)
        else:
            break
        stops += 1
    assert stops > 3


# Segments that retention was removing


def test_files_beside_a_segment_that_is_being_deleted_go_with_it(files: MemoryFiles) -> None:
    put(files, "0.log.deleted", "0.seal", "0.index", "0.timeindex", "0.txnindex")
    put(files, "5.log", "5.seal", "5.index", "5.snapshot", "notes.deleted")
    finish_deletions(files, DIRECTORY)
    assert names(files) == {"5.log", "5.seal", "5.index", "5.snapshot", "notes.deleted"}


def test_a_segment_that_has_taken_the_name_of_a_deleted_one_keeps_its_files(
    files: MemoryFiles,
) -> None:
    put(files, "0.log.deleted", "0.log", "0.seal", "0.index")
    finish_deletions(files, DIRECTORY)
    assert names(files) == {"0.log", "0.seal", "0.index"}


def test_a_seal_is_gone_for_good_before_the_file_that_explains_why(files: MemoryFiles) -> None:
    """A seal that came back alone would show a loss."""
    put(files, "0.log.deleted", "0.seal")
    files.sync_dir(DIRECTORY)
    files.fail_next("unlink", suffix=".deleted")
    with pytest.raises(OSError, match="Input/output error"):
        finish_deletions(files, DIRECTORY)
    assert names(files.cut_power(Random(1))) == {"0.log.deleted"}


# Compaction that was interrupted


def committed(files: MemoryFiles, base: int, *counts: int) -> None:
    """A segment that compaction has committed, of batches with so many records."""
    content = bytearray()
    offset = base
    for count in counts:
        content += build.batch(count, base_offset=offset)
        offset += count
    put(files, f"{base}.log.swap", content=bytes(content))


def test_a_committed_segment_replaces_those_that_it_was_made_from(files: MemoryFiles) -> None:
    put(files, "0.log", "0.seal", "0.index", "2.log", "2.index", "4.seal", "6.log", content=b"old")
    put(files, "0.index.cleaned", "0.seal.cleaned", content=b"new")
    committed(files, 0, 2, 4)
    content = files.read_whole(DIRECTORY / f"{0:020d}.log.swap")
    finish_swaps(files, DIRECTORY)
    assert names(files) == {"0.log", "0.seal", "0.index", "6.log"}
    assert files.read_whole(DIRECTORY / f"{0:020d}.log") == content
    assert files.read_whole(DIRECTORY / f"{0:020d}.index") == b"new"
    assert files.read_whole(DIRECTORY / f"{6:020d}.log") == b"old"


def test_a_segment_that_was_not_committed_goes(files: MemoryFiles) -> None:
    put(files, "0.log", "0.index", "0.log.cleaned", "0.index.cleaned", "notes.cleaned")
    finish_swaps(files, DIRECTORY)
    assert names(files) == {"0.log", "0.index", "notes.cleaned"}


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage behind"])
def test_a_committed_segment_that_the_disk_has_damaged_is_kept_aside(
    files: MemoryFiles, damage: str
) -> None:
    put(files, "0.log", "2.log", "0.index.cleaned", content=b"old")
    committed(files, 0, 2, 4)
    content = files.content(DIRECTORY / f"{0:020d}.log.swap")
    match damage:
        case "cut":
            del content[-1]
        case "flipped":
            content[-1] ^= 1
        case _:
            content += b"?"
    finish_swaps(files, DIRECTORY)
    assert names(files) == {"0.log", "2.log", "0.log.swap.stray"}
    assert files.read_whole(DIRECTORY / f"{0:020d}.log") == b"old"


def test_a_stop_while_a_swap_is_finished_is_finished_by_the_next_start() -> None:
    stops = 0
    while True:
        files = MemoryFiles()
        put(files, "0.log", "0.index", "2.log", "4.log", content=b"old")
        committed(files, 0, 2, 2)
        files.stop_after = stops
        try:
            finish_swaps(files, DIRECTORY)
        except MachineStopped:
            files = files.kill()
            if "0.log.swap" in names(files):
                finish_swaps(files, DIRECTORY)
            assert names(files) >= {"0.log", "4.log"}
            assert "2.log" not in names(files)
            assert files.read_whole(DIRECTORY / f"{0:020d}.log") != b"old"
        else:
            break
        stops += 1
    assert stops > 5


def test_snapshots_are_found_by_their_exact_names(files: MemoryFiles) -> None:
    put(files, "0.snapshot", "9.snapshot", "9.snapshot.tmp", "5.log", "mine.snapshot")
    assert snapshot_offsets(files, DIRECTORY) == [0, 9]
