"""What members tell each other."""

import pytest

from ottla.client.consumer_protocol import (
    assignment_bytes,
    parse_assignment,
    subscription_bytes,
)
from ottla.coordinator.subscription import subscribed_topics
from ottla.model import TopicPartition

TPS = [TopicPartition("b", 0), TopicPartition("a", 2), TopicPartition("a", 1)]


def test_an_assignment_reads_back_in_order() -> None:
    assert parse_assignment(assignment_bytes(TPS)) == tuple(sorted(TPS))
    assert parse_assignment(assignment_bytes([])) == ()


def test_no_bytes_are_no_partitions() -> None:
    assert parse_assignment(b"") == ()


@pytest.mark.parametrize("said", [b"\xff\xff", b"\x00", b"\x00\x00\x7f\xff\xff\xff", b"{}"])
def test_what_is_not_of_the_format_is_told_apart_from_nothing(said: bytes) -> None:
    assert parse_assignment(said) is None


def test_a_later_version_only_adds_behind() -> None:
    said = b"\x00\x09" + assignment_bytes(TPS)[2:] + b"news"
    assert parse_assignment(said) == tuple(sorted(TPS))


def test_the_broker_reads_what_a_member_subscribes_to() -> None:
    assert subscribed_topics(subscription_bytes(["b", "a", "b"])) == frozenset({"a", "b"})
