"""Whatever becomes of a log's files while nobody looks: the right records or an error, no silence.

Segments are cut at every byte, lose sectors, get bits flipped, are removed or replaced by an older
copy, after a clean stop and after a kill, below and above the recovery point. Then the log is
opened, read, written to, and opened again.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.log.check import damaged_ranges
from ottla.cli.log.commands import verify
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import Offset, TopicPartition, Uuid
from ottla.records.batch import batches, records
from ottla.storage.damages import CorruptRange
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir

ROOT: Final = Path("/data")
TP: Final = TopicPartition("orders", 0)
DIRECTORY: Final = ROOT / str(TP)
CONFIG: Final = TopicConfig(segment_bytes=700, index_interval_bytes=200)
CASES: Final = int(os.environ.get("OTTLA_DAMAGE_CASES", "160"))
SECTOR_BYTES: Final = 64
FIELDS: Final = {"base offset": 7, "length": 11, "magic": 16, "crc": 19, "delta": 26, "body": 70}


class Stopped(NamedTuple):
    """A directory that nobody has open, and what had been acknowledged there."""

    files: MemoryFiles
    acked: dict[int, bytes]
    is_clean: bool
    recovery_point: int


class Case(NamedTuple):
    """One thing that happens to one segment."""

    name: str
    start: Stopped
    segment: int
    harm: Callable[[bytearray], bytearray | None]


def open_dir(files: MemoryFiles) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: CONFIG, build.NOW_MS)
    return log_dir


def write(log: Log, count: int, rng: Random) -> dict[int, bytes]:
    """Append batches of mixed sizes and make them durable; every record has a value of its own."""
    acked = dict[int, bytes]()
    for _ in range(count):
        value = b"%d:" % log.end_offset + rng.randbytes(rng.choice([5, 60, 150]))
        size = rng.randint(1, 3)
        first = build.append(log, size, value=value)
        acked |= dict.fromkeys(range(first, first + size), value)
        log.flush()
    return acked


def stopped(*, is_clean: bool, sealed_count: int = 4) -> Stopped:
    """So many sealed segments and an active one, with a checkpoint in the middle."""
    files, rng = MemoryFiles(), Random(4)
    log_dir = open_dir(files)
    log = log_dir.create_log(TP, Uuid(bytes(range(16))), CONFIG, build.NOW_MS)
    acked = write(log, 1 + 2 * sealed_count, rng)
    log_dir.checkpoint()
    log_dir.checkpoint()
    point = int(log.durable_offset)
    while len(log.sealed_segments) < sealed_count:
        acked |= write(log, 1, rng)
    acked |= write(log, 3, rng)
    if is_clean:
        log_dir.close()
    return Stopped(files.kill(), acked, is_clean, point)


def copy_of(start: Stopped) -> MemoryFiles:
    """The same disk, to be damaged."""
    files = MemoryFiles()
    for directory in start.files.directories():
        files.make_dir(directory)
    for path in start.files.paths():
        files.create(path).append(start.files.read_whole(path))
        files.open(path).sync()
    for directory in (ROOT, DIRECTORY):
        files.sync_dir(directory)
    return files


def segment_paths(files: MemoryFiles) -> list[Path]:
    names = [entry.name for entry in files.list(DIRECTORY) if entry.name.endswith(".log")]
    return [DIRECTORY / name for name in sorted(names)]


def read_all(log: Log) -> tuple[dict[int, bytes], set[int]]:
    """Every record that is served, and every offset that is refused with CORRUPT_MESSAGE."""
    served, refused = dict[int, bytes](), set[int]()
    at = log.start_offset
    while at < log.end_offset:
        try:
            found = log.read(at, log.end_offset, 300, at_least_one=True)
        except CorruptBatch:
            refused.add(at)
            at = Offset(at + 1)
            continue
        assert found is not None, f"nothing at {at}, and no error"
        data = log.read_bytes(found)
        assert len(data) == found.size_bytes, "a range ends inside its file"
        inside = 0
        for header, view in batches(data):
            inside += len(view)
            assert header.base_offset not in served, "an offset is served twice"
            for record in records(view):
                if record.offset >= at:
                    assert record.value is not None
                    served[record.offset] = record.value
        assert inside == len(data), "a partial batch is served"
        assert found.end_offset > at
        at = found.end_offset
    return served, refused


def known_damage(log: Log) -> set[int]:
    return {at for one in log.corrupt for at in range(one.start_offset, one.end_offset)}


def check(start: Stopped, files: MemoryFiles, segment_base: int) -> None:
    """Open, read, write and open again; see the module's text for what has to be true."""
    expected = dict(start.acked)
    rng = Random(7)
    for round_ in range(3):
        log_dir = open_dir(files)
        log = log_dir.logs[TP]
        served, refused = read_all(log)
        end = max(expected) + 1
        if not round_ and log.end_offset < end:
            # Nothing tells that the last batches were ever there.
            assert not start.is_clean, "a clean stop has written down where the log ends"
            assert log.end_offset >= max(start.recovery_point, segment_base)
            is_last = segment_base == int(segment_paths(start.files)[-1].stem)
            assert is_last, "only the end of the log can be cut off"
            expected = {at: expected[at] for at in expected if at < log.end_offset}
        assert {at: expected.get(at) for at in served} == served, "a wrong record is served"
        assert refused == set(expected) - set(served), "an offset is neither served nor refused"
        assert refused == known_damage(log), "what is refused is what is known to be damaged"
        before = int(log.end_offset)
        news = write(log, 3, rng)
        assert min(news) == before
        assert not set(news) & set(expected), "an offset is used twice"
        expected |= news
        if round_ % 2:
            log_dir.close()
        files = files.kill()


def store(files: MemoryFiles, target: Path) -> Path:
    """Write a disk out for those who read real files; where its one partition lies."""
    for path in files.paths():
        file = target / path.relative_to(ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(files.read_whole(path))
    return target / str(TP)


def offsets_of(ranges: list[CorruptRange]) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in ranges]


def check_verified(files: MemoryFiles, target: Path) -> None:
    """`ottla log verify` finds what a broker finds: the same ranges, and says so by its status."""
    directory = store(files, target / "before")
    ranges = damaged_ranges(directory)
    log_dir = open_dir(files)
    log = log_dir.logs[TP]
    read_all(log)
    assert offsets_of(ranges) == offsets_of(log.corrupt), "before the broker has seen it"
    if ranges or log.cut_bytes:
        assert verify([directory]) == FAILED
    write(log, 3, Random(9))
    log_dir.close()
    again = store(files, target / "after")
    assert offsets_of(damaged_ranges(again)) == offsets_of(log.corrupt), "and behind it"
    assert (verify([again]) == FAILED) == bool(ranges)


def damages(
    start: Stopped, segment: int
) -> Iterator[tuple[str, Callable[[bytearray], bytearray | None]]]:
    """Everything that can happen to one segment file."""
    content = bytearray(start.files.read_whole(segment_paths(start.files)[segment]))
    starts, at = list[int](), 0
    for _, view in batches(content):
        starts.append(at)
        at += len(view)
    for size in range(len(content)):
        yield f"cut at {size}", partial(_cut, size=size)
    for first in range(0, len(content), SECTOR_BYTES // 2):
        yield f"sector at {first} zeroed", partial(_zeroed, first=first)
    for position in starts:
        for name, place in FIELDS.items():
            for bit in range(8):
                at = position + place
                yield (
                    f"bit {bit} of {name} flipped at {at}",
                    partial(_flipped, at=at, bit=bit),
                )
        for bit in (0, 3, 5):  # higher bytes of the base offset: far away
            for place in (0, 3, 5):
                at = position + place
                yield (
                    f"bit {bit} of base offset byte {place} flipped at {position}",
                    partial(_flipped, at=at, bit=bit),
                )
    other = bytes(start.files.read_whole(segment_paths(start.files)[0]))
    if segment:
        yield "replaced by a copy of another", lambda data: bytearray(other)
    yield "removed", lambda data: None
    yield "emptied", lambda data: bytearray()


def _cut(data: bytearray, size: int) -> bytearray:
    return data[:size]


def _zeroed(data: bytearray, first: int) -> bytearray:
    end = min(first + SECTOR_BYTES, len(data))
    data[first:end] = bytes(end - first)
    return data


def _flipped(data: bytearray, at: int, bit: int) -> bytearray:
    data[at] ^= 1 << bit
    return data


def every_case() -> list[Case]:
    """Everything that can happen to every segment of every kind of log."""
    starts = [
        stopped(is_clean=is_clean, sealed_count=sealed_count)
        for is_clean in (True, False)
        for sealed_count in (4, 0)
    ]
    return [
        Case(f"{name} in segment {segment}, clean: {start.is_clean}", start, segment, harm)
        for start in starts
        for segment in range(len(segment_paths(start.files)))
        for name, harm in damages(start, segment)
    ]


def drawn(count: int, seed: str) -> list[Case]:
    every = every_case()
    rng = Random(os.environ.get("OTTLA_DAMAGE_SEED", seed))
    return rng.sample(every, min(count, len(every)))


def harmed(case: Case) -> tuple[MemoryFiles, int]:
    """A damaged copy of the disk, and the base of the segment that was harmed."""
    files = copy_of(case.start)
    path = segment_paths(files)[case.segment]
    changed = case.harm(bytearray(files.read_whole(path)))
    if changed is None:
        files.unlink(path)
    else:
        files.create(path).append(changed)
    return files, int(path.stem)


def run(case: Case) -> None:
    files, base = harmed(case)
    try:
        check(case.start, files, base)
    except Exception as problem:
        raise AssertionError(case.name) from problem


def run_verified(case: Case, target: Path) -> None:
    files, _ = harmed(case)
    try:
        check_verified(files, target)
    except Exception as problem:
        raise AssertionError(case.name) from problem


@pytest.mark.slow
def test_damaged_segments_give_the_right_records_or_an_error() -> None:
    for case in drawn(CASES, "1"):
        run(case)


@pytest.mark.slow
def test_verify_and_broker_find_the_same(tmp_path: Path) -> None:
    for number, case in enumerate(drawn(CASES // 4, "2")):
        run_verified(case, tmp_path / str(number))


def test_verify_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    for number, is_clean in enumerate((True, False)):
        directory = store(stopped(is_clean=is_clean).files, tmp_path / str(number))
        assert damaged_ranges(directory) == []
        assert verify([directory]) == OK
