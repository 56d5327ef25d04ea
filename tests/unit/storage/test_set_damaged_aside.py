"""A damaged part of a log: cut off between segments, kept, and written again from a peer."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.logs import SMALL, fill, names_of
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.model import Offset, TimestampMs
from ottla.records.batch import batches
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.log import Log
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.scrub import Scrubber

Strike = Callable[[MemoryFiles, Path], None]


def flip_first(files: MemoryFiles, path: Path) -> None:
    files.flip(path, 40)


def flip_middle(files: MemoryFiles, path: Path) -> None:
    files.flip(path, len(files.content(path)) // 2)


def flip_last(files: MemoryFiles, path: Path) -> None:
    files.flip(path, len(files.content(path)) - 1)


def cut(files: MemoryFiles, path: Path) -> None:
    del files.content(path)[-50:]


def empty(files: MemoryFiles, path: Path) -> None:
    files.content(path).clear()


def remove(files: MemoryFiles, path: Path) -> None:
    files.unlink(path)


def content_of(files: MemoryFiles, log: Log) -> dict[str, bytes]:
    return {name: files.read_whole(log.directory / name) for name in names_of(files, log, ".log")}


def batches_of(log: Log) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while (part := log.read(offset, log.end_offset, 1 << 20, at_least_one=True)) is not None:
        found += [(one.base_offset, bytes(data)) for one, data in batches(log.read_bytes(part))]
        offset = part.end_offset
    return found


def damaged_log(
    files: MemoryFiles, segment: int, strike: Strike
) -> tuple[Log, dict[str, bytes], list[tuple[int, bytes]]]:
    """A log of four segments, closed, damaged, opened, scrubbed; and what it was before."""
    log = build.log(files, SMALL)
    fill(log, 3)
    build.append(log, 2, value=bytes(100))
    log.close()
    whole, written = content_of(files, log), batches_of(log)
    strike(files, log.directory / sorted(whole)[segment])
    again = Log(
        build.TP,
        files,
        log.directory,
        SMALL,
        start_offset=Offset(0),
        recovery_point=EVERYTHING,
        now_ms=build.NOW_MS,
        closed_at=log.end_offset,
    )
    scrubber = Scrubber(files, InlineWorker(), Path("/data"), has_peers=True)
    for step in range(100):
        scrubber.advance([again], TimestampMs(build.NOW_MS + step), 10**9)
    assert scrubber.round_count == 1
    return again, whole, written


@pytest.mark.parametrize("strike", [flip_first, flip_middle, flip_last, cut, empty, remove])
@pytest.mark.parametrize("segment", range(4))
def test_what_is_cut_off_is_kept_and_the_log_is_whole_when_it_is_written_again(
    files: MemoryFiles, segment: int, strike: Strike
) -> None:
    log, whole, written = damaged_log(files, segment, strike)
    assert log.corrupt, "the damage was found"
    names = sorted(whole)
    end = log.end_offset
    before = content_of(files, log)
    kept = log.truncation.set_damaged_aside(build.NOW_MS)
    assert log.corrupt == []
    assert log.end_offset <= int(names[segment][:20]) + len(written)
    found = [files.read_whole(log.directory / name) for name in names_of(files, log, "")]
    assert [name for name, content in before.items() if content and content not in found] == []
    assert all(name.endswith(".stray") for name in kept)
    again = build.log(  # the next start finds nothing wrong either
        files.kill(), SMALL, recovery_point=log.end_offset
    )
    assert (again.end_offset, again.corrupt) == (log.end_offset, [])
    for base_offset, batch in written:
        if base_offset >= log.end_offset:
            log.append_as_follower(bytearray(batch), build.NOW_MS)
    log.flush()
    assert log.end_offset == end
    assert content_of(files, log) == whole
    assert batches_of(log) == written


def test_what_was_kept_before_is_not_written_over(files: MemoryFiles) -> None:
    log, whole, written = damaged_log(files, 2, flip_middle)
    first = log.truncation.set_damaged_aside(build.NOW_MS)
    for base_offset, batch in written:
        if base_offset >= log.end_offset:
            log.append_as_follower(bytearray(batch), build.NOW_MS)
    log.close()
    name = sorted(whole)[2]
    flip_first(files, log.directory / name)
    again = build.log(files, SMALL, recovery_point=0)
    assert again.corrupt
    second = again.truncation.set_damaged_aside(build.NOW_MS)
    assert f"{name}.stray" in first
    assert f"{name}.stray.1" in second


@pytest.mark.parametrize("strike", [flip_middle, empty])
@pytest.mark.parametrize("segment", [0, 2])
def test_whenever_the_power_is_cut_no_record_is_lost_that_was_not_damaged_before(
    segment: int, strike: Strike
) -> None:
    for stop_after in count():
        files = MemoryFiles()
        log, _, _ = damaged_log(files, segment, strike)
        before, damaged, end = content_of(files, log), log.corrupt, log.end_offset
        del before[sorted(before)[segment]]
        cut = log.truncation.begin_setting_aside(build.NOW_MS)
        files.stop_after = stop_after
        with suppress(MachineStopped):
            cut.run()
        files.stop_after = None
        for after in (files.kill(), *(files.cut_power(Random(seed)) for seed in range(3))):
            again = build.log(after, SMALL, recovery_point=cut.end_offset)
            assert cut.end_offset <= again.end_offset <= end
            assert again.corrupt in ([], damaged), stop_after
            if again.corrupt:
                again.truncation.set_damaged_aside(build.NOW_MS)
            found = [after.read_whole(log.directory / name) for name in names_of(after, log, "")]
            assert [name for name, one in before.items() if one and one not in found] == []
        if cut.recovered is not None:
            break
        assert stop_after < 500, "it comes to an end"


def test_a_cut_that_sets_damage_aside_is_begun_and_ended_without_waiting_for_the_disk(
    files: MemoryFiles,
) -> None:
    log, whole, _ = damaged_log(files, 1, flip_middle)
    waited = files.counts["sync"] + files.counts["sync_dir"]
    cut = log.truncation.begin_setting_aside(build.NOW_MS)
    assert files.counts["sync"] + files.counts["sync_dir"] == waited
    assert content_of(files, log) == content_of(files.kill(), log)
    cut.run()
    waited = files.counts["sync"] + files.counts["sync_dir"]
    log.truncation.end(cut)
    assert files.counts["sync"] + files.counts["sync_dir"] == waited, "also of what was known"
    assert log.corrupt == []
    fill(log, 6)  # over the offsets that were damaged
    log.close()
    assert build.log(files.kill(), SMALL, recovery_point=log.end_offset).corrupt == []
    assert cut.kept_names == [f"{name}.stray" for name in sorted(whole, reverse=True)[:-1]]
