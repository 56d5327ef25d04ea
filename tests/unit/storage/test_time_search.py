"""Finding records by their time."""

from fakes import build
from fakes.logs import SMALL, append
from fakes.memory_files import MemoryFiles
from ottla.model import (
    LeaderEpoch,
    Offset,
    TimestampMs,
)
from ottla.records.compression import Codec


def test_a_record_is_found_by_its_time(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for number in range(60):
        log.append_as_leader(
            build.batch(3, timestamp_ms=1_000_000 + number * 10, codec=Codec.LZ4),
            LeaderEpoch(number // 30),
            build.NOW_MS,
        )
    assert len(log.sealed_segments) > 2
    for number in (0, 1, 29, 30, 59):
        base_ms = 1_000_000 + number * 10
        expected = (number * 3 + 1, base_ms + 1, number // 30)
        assert log.times.first_since(TimestampMs(base_ms + 1)) == expected
        assert log.times.first_since(TimestampMs(base_ms - 7)) == (
            number * 3,
            base_ms,
            number // 30,
        )
    assert log.times.first_since(TimestampMs(1_000_000 + 593)) is None
    assert log.times.newest() == (179, 1_000_592, 1)
    log.advance_start(Offset(100))
    assert log.times.first_since(TimestampMs(0)) == (100, 1_000_331, 1)


def test_time_may_run_backwards(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    for timestamp_ms in [500, 900, 100, 700, 900]:
        append(log, build.batch(timestamp_ms=timestamp_ms, value=bytes(400)))
    assert log.times.newest() == (1, 900, build.EPOCH)
    assert log.times.first_since(TimestampMs(600)) == (1, 900, build.EPOCH)
    assert log.times.first_since(TimestampMs(100)) == (0, 500, build.EPOCH)


def test_an_empty_log_has_no_times(files: MemoryFiles) -> None:
    log = build.log(files)
    assert log.times.newest() is None
    assert log.times.first_since(TimestampMs(0)) is None
    append(log, build.batch(timestamp_ms=-1))
    assert log.times.first_since(TimestampMs(5)) is None
