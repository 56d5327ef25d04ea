"""The admin query for records that wait in a partition, read from JSON."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ottla.errors import InvalidRequest
from ottla.model import TopicPartition
from ottla.protocol.messages.admin import Json

ROWS_MAX: Final = 1000  # of one response, and tickets of one query
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_FIELDS: Final = frozenset(
    {"topic", "partition", "tickets", "key", "schedules_only", "due_before_ms", "after", "limit"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingQuery:
    """A choice of records that wait in a partition.

    `after` is what the response before said: a due time and a ticket, or with a key, for which
    every record has to be read, the ticket alone.
    """

    tp: TopicPartition
    tickets: tuple[int, ...] | None = None  # of these alone; the first ticket names a schedule
    key: bytes | None = None
    schedules_only: bool = False
    due_before_ms: int = _INT64_MAX
    after: tuple[int, ...] | None = None
    limit: int = ROWS_MAX

    @classmethod
    def read(cls, body: Mapping[str, Json]) -> Self:
        """Read a query; `InvalidRequest` says which field is wrong."""
        if unknown := sorted(body.keys() - _FIELDS):
            raise InvalidRequest(f"unknown field {unknown[0]!r}: known are {sorted(_FIELDS)}")
        key = _base64(body, "key")
        after_size = 2 if key is None else 1
        after = _numbers(body, "after", after_size)
        if after is not None and len(after) != after_size:
            raise InvalidRequest(f"field 'after' has {len(after)} numbers, not {after_size}")
        topic = body.get("topic")
        if not isinstance(topic, str):
            raise InvalidRequest("field 'topic' is not text")
        schedules_only = body.get("schedules_only", False)
        if not isinstance(schedules_only, bool):
            raise InvalidRequest("field 'schedules_only' is neither true nor false")
        return cls(
            tp=TopicPartition(topic, _number(body, "partition", _INT32_MAX)),
            tickets=_numbers(body, "tickets", ROWS_MAX),
            key=key,
            schedules_only=schedules_only,
            due_before_ms=_number(body, "due_before_ms", _INT64_MAX, _INT64_MAX),
            after=after,
            limit=_number(body, "limit", ROWS_MAX, ROWS_MAX),
        )


def _number(body: Mapping[str, Json], name: str, high: int, default: int | None = None) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise InvalidRequest(f"field {name!r} is not a whole number from 0 to {high}")
    return value


def _numbers(body: Mapping[str, Json], name: str, count_max: int) -> tuple[int, ...] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > count_max:
        raise InvalidRequest(f"field {name!r} is not a list of at most {count_max} numbers")
    return tuple(_number({name: one}, name, _INT64_MAX) for one in value)


def _base64(body: Mapping[str, Json], name: str) -> bytes | None:
    value = body.get(name)
    if value is None:
        return None
    try:
        return base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"field {name!r} is not base64") from None
