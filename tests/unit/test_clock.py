"""The machine's clock."""

import time

from ottla.clock import SystemClock


def test_the_time_of_day_is_in_milliseconds_since_1970() -> None:
    before_ms = time.time_ns() // 1_000_000
    now_ms = SystemClock().now_ms()
    assert before_ms <= now_ms <= time.time_ns() // 1_000_000


def test_monotonic_time_is_in_seconds_and_never_goes_back() -> None:
    clock = SystemClock()
    before_s, first_s, second_s = time.monotonic(), clock.monotonic_s(), clock.monotonic_s()
    assert before_s <= first_s <= second_s <= time.monotonic()
