"""A swap that is interrupted anywhere, or fails."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes import build
from fakes.compacted_logs import CONFIG, compact, contents, put
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.storage.files import StrPath


class _Keeps(Random):
    """Chance that keeps no name and no byte that was not synced."""

    def random(self) -> float:
        return 1.0

    def randint(self, low: int, high: int) -> int:
        return low

    def choice(self, options: Any) -> Any:
        return options[0]


class _Reordering(MemoryFiles):
    """A disk that need not keep what was not synced in the order in which it was done."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[StrPath, StrPath] | None = None
        self._removed: list[StrPath] = []

    def unlink(self, path: StrPath) -> None:
        super().unlink(path)
        self._removed.append(path)

    def rename(self, old: StrPath, new: StrPath) -> None:
        super().rename(old, new)
        self._last = old, new

    def sync_dir(self, path: StrPath) -> None:
        super().sync_dir(path)
        self._last = None
        self._removed.clear()

    def keep_last_rename(self) -> MemoryFiles:
        """The disk after a power cut: of what was not synced, the last rename alone survives."""
        after = self.cut_power(_Keeps())
        if self._last is not None and Path(self._last[0]) in after.paths():
            after.rename(*self._last)
        return after

    def keep_removals(self) -> MemoryFiles:
        """The disk after a power cut: of what was not synced, the removals alone survive."""
        after = self.cut_power(_Keeps())
        for path in self._removed:
            after.unlink(path)
        return after


def test_a_stop_at_any_moment_leaves_the_old_or_the_new(files: MemoryFiles) -> None:
    """Every change to the disk that compaction makes is the last one once, both ways."""
    seen = set()
    stops = 0
    while True:
        disk = _Reordering()
        log = build.log(disk, CONFIG)
        for number in range(6):
            put(log, (b"%d" % (number % 2), b"%d" % number))
            if number % 2:
                log.roll(build.NOW_MS)
        log.flushing.save()
        log.flush()
        disk.stop_after = stops
        try:
            compact(log, rolls=False)
        except MachineStopped:
            pass
        else:
            break
        for after in (
            disk.kill(),
            disk.kill().cut_power(_Keeps()),
            disk.cut_power(_Keeps()),
            disk.keep_last_rename(),
            disk.keep_removals(),
        ):
            again = build.log(after, CONFIG, recovery_point=6)
            offsets = tuple(offset for offset, _, _ in contents(again))
            assert offsets in {(0, 1, 2, 3, 4, 5), (4, 5)}
            assert [one.end_offset for one in again.sealed_segments][-1] == 6
            assert not [
                entry.name
                for entry in after.list(again.directory)
                if entry.name.endswith((".cleaned", ".swap"))
            ]
            seen.add(offsets)
        stops += 1
    assert stops > 10
    assert len(seen) == 2


def test_a_full_disk_ends_the_pass_and_nothing_else(files: MemoryFiles) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    files.fail_next("append", 28, suffix=".log.cleaned")
    cleaner = compact(log, rolls=False)
    assert cleaner.failure_count == 1
    assert log.offline_reason is None
    assert len(contents(log)) == 2
    assert not [e.name for e in files.list(log.directory) if e.name.endswith(".cleaned")]
    assert compact(log, rolls=False).pass_count == 1


@pytest.mark.parametrize("operation", ["sync", "rename"])  # to copy, and to swap
def test_a_failing_disk_takes_the_log_offline(files: MemoryFiles, operation: str) -> None:
    log = build.log(files, CONFIG)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(build.NOW_MS)
    files.fail_next(operation, suffix=".log.cleaned")
    compact(log, rolls=False)
    assert log.offline_reason is not None
