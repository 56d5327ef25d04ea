"""When a task is to be delivered, from what Celery and kombu write into its message."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """The time before which, and the seconds after that within which, a message is delivered."""

    at: datetime | None = None
    ttl_s: float | None = None


def timing_of(message: Mapping[str, Any], now: datetime) -> Timing:
    """The timing of a message: Celery's headers `eta` and `expires`, kombu's `expiration`.

    An expiry counts from the delivery on, so that of a delayed task is shorter.
    """
    headers, properties = message.get("headers") or {}, message.get("properties") or {}
    at = _time(headers.get("eta"), now)
    start = now if at is None else max(at, now)
    ends: list[datetime] = []
    expires = _time(headers.get("expires"), now)
    if expires is not None:
        ends.append(expires)
    expiration = str(properties.get("expiration") or "")
    if expiration.isdigit():
        ends.append(start + timedelta(milliseconds=int(expiration)))
    ttl_s = max((min(ends) - start).total_seconds(), 0.0) if ends else None
    return Timing(at if at is not None and at > now else None, ttl_s)


def _time(value: object, now: datetime) -> datetime | None:
    """A time as Celery writes it; None for what is none. Without a zone it is in that of `now`."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
