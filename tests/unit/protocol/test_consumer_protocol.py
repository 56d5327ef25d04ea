"""Topics inside the opaque bytes of a join."""

import pytest

from fakes.group_members import subscription
from ottla.model import TopicPartition
from ottla.protocol.consumer_protocol import (
    assigned_partitions,
    assignment_bytes,
    parse_assignment,
    parse_subscription,
    partitions_bytes,
    subscribed_topics,
    subscription_bytes,
)


def test_topics_are_found_in_every_version() -> None:
    said = subscription("a", "b", owned={"a": [0]})
    assert subscribed_topics(said) == frozenset({"a", "b"})
    assert subscribed_topics(b"\x00\x00" + said[2:]) == frozenset({"a", "b"})


def test_a_version_of_the_future_is_read_as_far_as_it_is_known() -> None:
    version_3 = b"\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"
    assert subscribed_topics(b"\x00\x09" + version_3 + b"more") == frozenset({"a"})


@pytest.mark.parametrize(
    "said", [b"", b"\x00", b"\x00\x01", b"\xff\xff", b"\x00\x01\x7f\xff\xff\xff"]
)
def test_other_bytes_say_nothing(said: bytes) -> None:
    assert subscribed_topics(said) is None


def test_what_a_consumer_owns_is_found_from_version_1_on() -> None:
    said = subscription("a", owned={"a": [0, 2]})
    found = parse_subscription(said)
    assert found is not None
    assert (found.owned, found.version) == ({"a": [0, 2]}, 1)
    before = parse_subscription(b"\x00\x00" + said[2:])
    assert before is not None
    assert (before.owned, before.version) == ({}, 0)


@pytest.mark.parametrize("version", range(4))
def test_assignments_are_written_and_read(version: int) -> None:
    written = assignment_bytes({"t": [0, 3], "u": []}, version)
    assert written[:2] == version.to_bytes(2, "big")
    assert parse_assignment(written) == {"t": [0, 3], "u": []}


def test_no_bytes_are_no_assignment() -> None:
    assert parse_assignment(b"") == {}
    assert parse_assignment(b"\xff\xff") is None
    assert parse_assignment(b"\x00\x01\x00") is None


TPS = [TopicPartition("b", 0), TopicPartition("a", 2), TopicPartition("a", 1)]


def test_an_assignment_reads_back_in_order() -> None:
    assert assigned_partitions(partitions_bytes(TPS)) == tuple(sorted(TPS))
    assert assigned_partitions(partitions_bytes([])) == ()


def test_a_client_reads_no_bytes_as_no_partitions() -> None:
    assert assigned_partitions(b"") == ()


@pytest.mark.parametrize("said", [b"\xff\xff", b"\x00", b"\x00\x00\x7f\xff\xff\xff", b"{}"])
def test_what_is_not_of_the_format_is_told_apart_from_nothing(said: bytes) -> None:
    assert assigned_partitions(said) is None


def test_a_later_version_only_adds_behind() -> None:
    said = b"\x00\x09" + partitions_bytes(TPS)[2:] + b"news"
    assert assigned_partitions(said) == tuple(sorted(TPS))


def test_the_broker_reads_what_a_member_subscribes_to() -> None:
    assert subscribed_topics(subscription_bytes(["b", "a", "b"])) == frozenset({"a", "b"})
