"""A wall clock that is set forward makes nothing due early; one set back is followed."""

from random import Random

from ottla.queues.due_clock import AHEAD_MS, DueClock

HOUR_MS = 3_600_000


def test_it_is_the_wall_clock_as_long_as_that_runs_evenly() -> None:
    clock = DueClock(1_000_000, 50)
    assert [clock.now_ms(1_000_000 + ms, 50 + ms) for ms in (0, 7, 900)] == [
        1_000_000,
        1_000_007,
        1_000_900,
    ]


def test_a_step_forward_is_not_followed_for_ten_minutes() -> None:
    clock = DueClock(1_000_000, 0)
    for ms in range(0, AHEAD_MS, 60_000):
        assert clock.now_ms(1_000_000 + HOUR_MS + ms, ms) == 1_000_000 + ms
    assert clock.moved_ms == 0
    assert clock.now_ms(1_000_000 + HOUR_MS + AHEAD_MS, AHEAD_MS) == 1_000_000 + HOUR_MS + AHEAD_MS
    assert clock.moved_ms == HOUR_MS


def test_a_step_back_is_followed_at_once() -> None:
    clock = DueClock(10 * HOUR_MS, 0)
    assert clock.now_ms(9 * HOUR_MS, 5) == 9 * HOUR_MS
    assert clock.now_ms(9 * HOUR_MS + 7, 12) == 9 * HOUR_MS + 7


def test_the_correction_of_a_step_back_is_a_step_forward_like_any_other() -> None:
    """A delay that began while the clock was an hour behind does not end at once."""
    clock = DueClock(10 * HOUR_MS, 0)
    clock.now_ms(9 * HOUR_MS, 0)
    for ms in range(0, AHEAD_MS, 60_000):
        assert clock.now_ms(10 * HOUR_MS + ms, ms) == 9 * HOUR_MS + ms
    assert clock.now_ms(10 * HOUR_MS + AHEAD_MS, AHEAD_MS) == 10 * HOUR_MS + AHEAD_MS
    assert clock.moved_ms == HOUR_MS


def test_whatever_the_steps_time_never_passes_faster_than_it_does() -> None:
    rng = Random(4)
    clock, hours, last_ms, last_steady_ms = DueClock(50 * HOUR_MS, 0), 0, 50 * HOUR_MS, 0
    for _ in range(1000):
        hours += rng.choice((-1, 0, 1))
        steady_ms = last_steady_ms + rng.randrange(500)
        now_ms = clock.now_ms((50 + hours) * HOUR_MS + steady_ms, steady_ms)
        assert now_ms - last_ms <= steady_ms - last_steady_ms
        last_ms, last_steady_ms = now_ms, steady_ms


def test_steps_to_and_fro_never_run_ahead_of_the_steady_clock() -> None:
    clock = DueClock(10 * HOUR_MS, 0)
    for step in range(30):
        steady = step * 40_000
        wall = 10 * HOUR_MS + steady + (HOUR_MS if step % 2 else -HOUR_MS)
        assert clock.now_ms(wall, steady) <= 10 * HOUR_MS + steady
