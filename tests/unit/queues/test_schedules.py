"""Cron expressions in time zones, over both changes of the clock."""

from datetime import UTC, datetime

import pytest

from ottla.queues.schedules import InvalidSchedule, Schedule


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def times(cron: bytes, zone: bytes | None, after: str, count: int) -> list[str]:
    schedule, at_ms, found = Schedule.read(cron, zone), ms(after), []
    for _ in range(count):
        at_ms = schedule.next_ms(at_ms)
        found.append(datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M"))
    return found


def test_a_time_that_the_spring_change_skips_is_due_right_after_it() -> None:
    found = times(b"30 2 * * *", b"Europe/Prague", "2026-03-28T12:00", 3)
    assert found == ["03-29 01:00", "03-30 00:30", "03-31 00:30"]


def test_a_time_that_the_autumn_change_repeats_is_due_once() -> None:
    found = times(b"30 2 * * *", b"Europe/Prague", "2026-10-24T12:00", 3)
    assert found == ["10-25 00:30", "10-26 01:30", "10-27 01:30"]


def test_every_hour_is_every_hour_over_both_changes() -> None:
    spring = times(b"0 * * * *", b"Europe/Prague", "2026-03-28T23:30", 4)
    assert spring == ["03-29 00:00", "03-29 01:00", "03-29 02:00", "03-29 03:00"]
    autumn = times(b"0 * * * *", b"Europe/Prague", "2026-10-24T23:30", 4)
    assert autumn == ["10-25 00:00", "10-25 01:00", "10-25 02:00", "10-25 03:00"]


def test_without_a_zone_it_is_utc_and_the_next_time_is_after_the_given_one() -> None:
    assert times(b"*/20 * * * *", None, "2026-01-01T00:20", 2) == ["01-01 00:40", "01-01 01:00"]


@pytest.mark.parametrize(
    ("cron", "zone", "text"),
    [
        (b"* * * *", None, "five fields"),
        (b"* * * * * *", None, "five fields"),
        (b"61 * * * *", None, "cannot be read"),
        (b"\xff * * * *", None, "ASCII"),
        (None, None, "five fields"),
        (b"* * * * *", b"Mars/Olympus", "unknown"),
        (b"* * * * *", b"../../etc/passwd", "unknown"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    cron: bytes | None, zone: bytes | None, text: str
) -> None:
    with pytest.raises(InvalidSchedule, match=text):
        Schedule.read(cron, zone)
