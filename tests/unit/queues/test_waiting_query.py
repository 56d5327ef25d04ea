"""Queries for records that wait, as clients may send them."""

from typing import Any

import pytest

from ottla.errors import InvalidRequest
from ottla.model import TopicPartition
from ottla.queues.waiting_query import ROWS_MAX, WaitingQuery


def test_a_query_has_defaults_for_all_but_its_partition() -> None:
    query = WaitingQuery.read({"topic": "t", "partition": 2})
    assert query == WaitingQuery(tp=TopicPartition("t", 2))
    assert (query.limit, query.due_before_ms, query.key) == (ROWS_MAX, 2**63 - 1, None)


def test_every_field_is_read() -> None:
    body: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "tickets": [4, 5],
        "key": "a2V5",
        "schedules_only": True,
        "due_before_ms": 7,
        "after": [9],
        "limit": 3,
    }
    assert WaitingQuery.read(body) == WaitingQuery(
        tp=TopicPartition("t", 0),
        tickets=(4, 5),
        key=b"key",
        schedules_only=True,
        due_before_ms=7,
        after=(9,),
        limit=3,
    )


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("topic", None, "'topic' is not text"),
        ("topic", 5, "'topic' is not text"),
        ("partition", -1, "'partition' is not a whole number"),
        ("partition", 2**31, "'partition' is not a whole number"),
        ("partition", True, "'partition' is not a whole number"),
        ("partition", "0", "'partition' is not a whole number"),
        ("limit", ROWS_MAX + 1, "'limit' is not a whole number from 0 to 1000"),
        ("tickets", 4, "'tickets' is not a list"),
        ("tickets", [0] * (ROWS_MAX + 1), "'tickets' is not a list of at most 1000"),
        ("tickets", [1.5], "'tickets' is not a whole number"),
        ("key", "?", "'key' is not base64"),
        ("key", 5, "'key' is not base64"),
        ("after", [1], "'after' has 1 numbers, not 2"),
        ("after", [1, 2, 3], "'after' is not a list of at most 2"),
        ("schedules_only", 1, "'schedules_only' is neither true nor false"),
        ("due_before_ms", 2**63, "'due_before_ms' is not a whole number"),
        ("order", "due", "unknown field 'order'"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(field: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        WaitingQuery.read({"topic": "t", "partition": 0, field: value})
