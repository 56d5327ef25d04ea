"""What people read about a rebalance."""

import pytest

from ottla.cli.group.consume import describe_event
from ottla.cli.group.description import format_partitions
from ottla.client.group_reader import Assigned, GroupEvent, Lost, Moved, Revoked
from ottla.model import Offset, TopicPartition

TPS = (TopicPartition("a", 1), TopicPartition("a", 10), TopicPartition("b", 0))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Assigned(TPS, 7), "group g, generation 7: reading a:1,10 b:0"),
        (Assigned((), 7), "group g, generation 7: reading no partitions, other members have all"),
        (Revoked(TPS), "group g: revoked a:1,10 b:0"),
        (
            Lost(TPS[:1], "gone"),
            "group g: lost a:1 (gone); records since the last commit will be read again",
        ),
        (Moved(TPS[0], Offset(3), Offset(10)), "group g: a-1 has no offset 3, reading from 10"),
    ],
    ids=["assigned", "assigned nothing", "revoked", "lost", "moved"],
)
def test_every_event_is_one_line(event: GroupEvent, line: str) -> None:
    assert describe_event("g", event) == line


def test_partitions_are_written_as_they_are_read_from_the_command_line() -> None:
    assert format_partitions(TPS[::-1]) == "a:1,10 b:0"
    assert format_partitions(()) == ""
