"""When a task is to be delivered."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ottla.kombu.timing import Timing, timing_of

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def timing(eta: object = None, expires: object = None, expiration: object = None) -> Timing:
    message = {
        "headers": {"eta": eta, "expires": expires},
        "properties": {"expiration": expiration},
    }
    return timing_of(message, NOW)


def test_a_task_without_times_is_delivered_at_once_and_for_ever() -> None:
    assert timing() == Timing(None, None)
    assert timing_of({}, NOW) == Timing(None, None)


def test_an_eta_counts_in_its_zone_and_only_if_it_is_to_come() -> None:
    assert timing(eta=(NOW + HOUR).isoformat()) == Timing(NOW + HOUR, None)
    zone = timezone(timedelta(hours=5))
    assert timing(eta=(NOW + HOUR).astimezone(zone).isoformat()) == Timing(NOW + HOUR, None)
    assert timing(eta="2026-11-18T13:00:00") == Timing(NOW + HOUR, None), "that of Celery: UTC"
    assert timing(eta=(NOW - HOUR).isoformat()) == Timing(None, None)


def test_an_expiry_counts_from_the_delivery_on() -> None:
    later = (NOW + 2 * HOUR).isoformat()
    assert timing(expires=later).ttl_s == 7200
    assert timing(eta=(NOW + HOUR).isoformat(), expires=later) == Timing(NOW + HOUR, 3600)
    assert timing(expires=(NOW - HOUR).isoformat()).ttl_s == 0
    assert timing(expiration="1500").ttl_s == 1.5
    assert timing(expires=later, expiration="1000").ttl_s == 1.0


@pytest.mark.parametrize("value", ["soon", 5, "", None, "2026-99-99"])
def test_what_is_no_time_says_nothing(value: object) -> None:
    assert timing(eta=value, expires=value) == Timing(None, None)
