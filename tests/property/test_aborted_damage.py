"""Whatever becomes of a `.txnindex`: readers of committed records see no aborted one.

Every byte of every such file is flipped, files are cut, removed and exchanged, after a clean stop
and after a kill. The list of aborted transactions must be what it was, an error line must say that
it was read off the log again, and the next start must find it repaired.
"""

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from fakes import build
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.config import TopicConfig
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition, Uuid
from ottla.records.batch import Marker, MarkerKind, batches
from ottla.storage.checkpoints import decode_checkpoint, encode_checkpoint
from ottla.storage.index import AbortedTransaction
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir

ROOT: Final = Path("/data")
TP: Final = TopicPartition("orders", 0)
DIRECTORY: Final = ROOT / str(TP)
CONFIG: Final = TopicConfig(segment_bytes=1000, index_interval_bytes=200)
CASES: Final = int(os.environ.get("OTTLA_DAMAGE_CASES", "80"))
REBUILT: Final = "list of aborted transactions rebuilt"
ENTRY_BYTES: Final = 34

Harm = Callable[[bytes], bytes | None]


@pytest.fixture(autouse=True, params=[False, True], ids=["in the checkpoint", "in files"])
def is_in_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Where the states of logs lie: in files if they are large, and here also if they are small."""
    if request.param:
        monkeypatch.setattr("ottla.storage.log_flush.fits", lambda indexes, producers: False)
    is_in_files: bool = request.param
    return is_in_files


class Stopped(NamedTuple):
    """A disk that nobody has open, and what was aborted on it."""

    name: str
    files: MemoryFiles
    aborted: list[AbortedTransaction]


class Case(NamedTuple):
    """One thing that happens to one file."""

    name: str
    start: Stopped
    path: Path
    harm: Harm


class Transactions:
    """Producers that take turns: of their transactions some commit and most abort."""

    def __init__(self, log: Log, rng: Random) -> None:
        self._log = log
        self._rng = rng
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def step(self) -> None:
        """One batch or one marker."""
        producer = self._rng.randrange(1, 5)
        if producer in self._open and self._rng.random() < 0.5:
            self._end(producer)
        else:
            self._write(producer)

    def _write(self, producer: int) -> None:
        sequence = self._sequences.get(producer, 0)
        batch = build.batch(
            2,
            value=self._rng.randbytes(self._rng.choice([5, 60])),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        self._log.append_as_leader(batch, LeaderEpoch(0), build.NOW_MS)
        self._sequences[producer] = sequence + 2
        self._open.add(producer)

    def _end(self, producer: int) -> None:
        kind = MarkerKind.ABORT if self._rng.random() < 0.8 else MarkerKind.COMMIT
        self._log.append_marker(
            Marker(kind, 0), ProducerId(producer), ProducerEpoch(0), LeaderEpoch(0), build.NOW_MS
        )
        self._open.discard(producer)


def open_dir(files: MemoryFiles) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: CONFIG, build.NOW_MS)
    return log_dir


def aborted_of(log: Log) -> list[AbortedTransaction]:
    return log.aborted_transactions(log.start_offset, log.end_offset)


def stopped(*, is_clean: bool, steps_behind: int) -> Stopped:
    """Several segments with aborted transactions, and a checkpoint so many steps before the end."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = log_dir.create_log(TP, Uuid(bytes(range(16))), CONFIG, build.NOW_MS)
    transactions = Transactions(log, Random(5))
    for _ in range(40):
        transactions.step()
        log.flush()
    log_dir.checkpoint()
    log.flush()  # stores what the checkpoint asked for
    log_dir.checkpoint()
    for _ in range(steps_behind):
        transactions.step()
        log.flush()
    aborted = aborted_of(log)
    if is_clean:
        log_dir.close()
    name = f"{'stopped' if is_clean else 'killed'} {steps_behind} steps behind a checkpoint"
    return Stopped(name, files.kill(), aborted)


def copy_of(files: MemoryFiles) -> MemoryFiles:
    copy = MemoryFiles()
    for directory in files.directories():
        copy.make_dir(directory)
    for path in files.paths():
        copy.create(path).append(files.read_whole(path))
        copy.open(path).sync()
    for directory in (ROOT, DIRECTORY):
        copy.sync_dir(directory)
    return copy


def starts() -> list[Stopped]:
    return [
        stopped(is_clean=is_clean, steps_behind=steps)
        for is_clean in (True, False)
        for steps in (0, 2, 15)
    ]


def paths_of(files: MemoryFiles, suffix: str) -> list[Path]:
    return [
        DIRECTORY / entry.name for entry in files.list(DIRECTORY) if entry.name.endswith(suffix)
    ]


def harms(content: bytes, other: bytes) -> Iterator[tuple[str, Harm]]:
    for at in range(len(content)):
        for bit in (0, 4, 7):
            yield (
                f"bit {bit} of byte {at} flipped",
                partial(_flip, at=at, bit=bit),
            )
    for size in {0, 1, len(content) - 1, *range(ENTRY_BYTES, len(content), ENTRY_BYTES)}:
        yield f"cut to {size} bytes", partial(_cut, size=size)
    yield "removed", lambda data: None
    yield "doubled", lambda data: data + data
    yield "replaced by another segment's", lambda data: other


def _cut(data: bytes, size: int) -> bytes:
    return data[:size]


def _flip(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def every_case() -> list[Case]:
    return [
        Case(f"{path.name} {name}, {start.name}", start, path, harm)
        for start in starts()
        for path in paths_of(start.files, ".txnindex")
        for name, harm in harms(
            start.files.read_whole(path),
            start.files.read_whole(paths_of(start.files, ".txnindex")[0]),
        )
    ]


def strike(case: Case, files: MemoryFiles) -> bool:
    """Do the harm; whether there is any."""
    before = files.read_whole(case.path)
    changed = case.harm(before)
    if changed is None:
        files.unlink(case.path)
    else:
        files.create(case.path).append(changed)
    return changed != before


def check(case: Case, said: list[logging.LogRecord], gone: slice) -> None:
    files = copy_of(case.start.files)
    is_harmed = strike(case, files)
    for path in paths_of(files, ".snapshot")[gone]:
        files.unlink(path)
    for round_ in range(3):
        said.clear()
        log_dir = open_dir(files)
        log = log_dir.logs[TP]
        assert aborted_of(log) == case.start.aborted, f"start {round_}"
        for at in range(0, log.end_offset, 7):  # every reader skips what is aborted in its range
            expected = [
                one
                for one in case.start.aborted
                if one.last_offset >= at and one.first_offset < at + 5
            ]
            assert log.aborted_transactions(Offset(at), Offset(at + 5)) == expected
        lines = [line for line in said if line.getMessage() == REBUILT]
        assert len(lines) <= int(is_harmed and not round_)
        assert all(vars(line)["tp"] == str(TP) for line in lines)
        if round_ == 1:
            log_dir.close()
        files = files.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "gone",
    [slice(0), slice(None), slice(-1)],
    ids=["every snapshot is there", "none is", "only the newest is"],
)
def test_a_damaged_list_of_aborted_transactions_is_read_off_the_log_again(
    gone: slice, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "ottla")
    every = every_case()
    rng = Random(os.environ.get("OTTLA_DAMAGE_SEED", "3"))
    for case in rng.sample(every, min(CASES, len(every))):
        try:
            check(case, caplog.records, gone)
        except Exception as problem:
            raise AssertionError(case.name) from problem


def test_a_damaged_list_is_said_once_and_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    for start in starts()[::2]:
        for path in paths_of(start.files, ".txnindex"):
            files = copy_of(start.files)
            content = bytearray(files.read_whole(path))
            content[-1] ^= 1  # a number that is as plausible as the right one
            files.create(path).append(content)
            caplog.clear()
            for _ in range(2):
                assert aborted_of(open_dir(files).logs[TP]) == start.aborted
                files = files.kill()
            said = [vars(line) for line in caplog.records if line.getMessage() == REBUILT]
            is_read = start.name.startswith("stopped") or "0 steps" in start.name
            if is_read or said:  # a kill may leave a file that is not needed any more
                assert [(line["tp"], line["file"]) for line in said] == [(str(TP), str(path))]


def test_segments_that_are_being_replaced_are_read_through_the_files_that_are_open() -> None:
    start = stopped(is_clean=True, steps_behind=0)
    files = start.files
    for path in paths_of(files, ".snapshot")[:-1]:
        files.unlink(path)
    log = open_dir(files).logs[TP]
    first, second = log.sealed_segments[:2]
    assert log.read(first.base_offset, first.end_offset, 1, at_least_one=True) is not None
    files.unlink(DIRECTORY / f"{first.base_offset:020d}.log")  # its name is a worker's
    files.unlink(DIRECTORY / f"{second.base_offset:020d}.txnindex")
    assert aborted_of(log) == start.aborted


def test_lists_of_an_older_ottla_are_believed(caplog: pytest.LogCaptureFixture) -> None:
    start = stopped(is_clean=True, steps_behind=2)
    files = start.files
    for path in paths_of(files, ".seal"):
        (line,) = decode_checkpoint(files.read_whole(path))
        files.create(path).append(encode_checkpoint([line.rpartition(" ")[0]]))
    assert aborted_of(open_dir(files).logs[TP]) == start.aborted
    assert not caplog.records


@pytest.mark.slow
def test_a_kill_or_a_power_cut_at_any_moment_shows_no_aborted_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kill is no damage: where no byte has changed, nothing is said to have."""
    for seed in range(CASES // 4):
        rng = Random(seed)
        files = MemoryFiles()
        log_dir = open_dir(files)
        log = log_dir.create_log(TP, Uuid(bytes(range(16))), CONFIG, build.NOW_MS)
        transactions = Transactions(log, rng)
        expected = aborted_of(log)
        files.stop_after = rng.randrange(400)
        try:
            while True:
                transactions.step()
                expected = aborted_of(log)
                if rng.random() < 0.3:
                    log.flush()
                if rng.random() < 0.1:
                    log_dir.checkpoint()
        except MachineStopped:
            pass
        killed = open_dir(files.kill()).logs[TP]
        assert aborted_of(killed)[: len(expected)] == expected
        assert not [line for line in caplog.records if line.getMessage() == REBUILT], seed
        durable = [one for one in expected if one.last_offset < log.durable_offset]
        cut = open_dir(files.cut_power(rng)).logs[TP]
        assert aborted_of(cut)[: len(durable)] == durable
        caplog.clear()


def test_a_list_whose_marker_is_damaged_as_well_is_rebuilt_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = stopped(is_clean=True, steps_behind=0)
    files = start.files
    path = paths_of(files, ".txnindex")[1]
    files.unlink(path)
    content = files.content(path.with_suffix(".log"))
    *_, (header, _) = batches(bytes(content))
    assert header.base_offset in [one.last_offset for one in start.aborted], "it is a marker"
    content[-1] ^= 1
    for _ in range(2):
        left = [one for one in start.aborted if one.last_offset != header.base_offset]
        assert aborted_of(open_dir(files).logs[TP]) == left
        files = files.kill()
    assert [line.getMessage() for line in caplog.records].count(REBUILT) == 1


def test_a_list_that_a_truncation_has_emptied_is_not_believed_again(
    is_in_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = log_dir.create_log(TP, Uuid(bytes(range(16))), CONFIG, build.NOW_MS)
    transactions = Transactions(log, Random(5))
    while not (aborted := aborted_of(log)):
        transactions.step()
    log.flushing.save()
    log.flush()
    assert bool(paths_of(files, ".txnindex")) == is_in_files
    log.truncate(Offset(aborted[0].last_offset), build.NOW_MS)
    build.append(log, 20, epoch=0)
    log_dir.close()
    assert aborted_of(open_dir(files.kill()).logs[TP]) == []
    assert not caplog.records
