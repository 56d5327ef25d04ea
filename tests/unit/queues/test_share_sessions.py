"""Share sessions: epochs, limits, and what ends with a connection."""

import pytest

from ottla.model import Uuid
from ottla.queues.errors import (
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from ottla.queues.share_sessions import CLOSING, SessionKey, SharedPartition, ShareSessions

KEY = SessionKey("g", "m")
FIRST, SECOND = (SharedPartition(Uuid(b"t" * 16), index) for index in range(2))


def test_epochs_are_counted_and_never_return_to_the_first() -> None:
    sessions = ShareSessions()
    session = sessions.open(KEY, "here", 5)
    for epoch in (1, 2, 3):
        assert sessions.advance(KEY, epoch) is session
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.advance(KEY, 3)
    session.epoch = 2**31 - 1
    sessions.advance(KEY, 2**31 - 1)
    sessions.advance(KEY, 1)
    assert sessions.advance(KEY, CLOSING) is session
    sessions.close(KEY)
    with pytest.raises(ShareSessionNotFound):
        sessions.advance(KEY, 2)


def test_a_partition_is_used_as_long_as_a_session_has_it() -> None:
    sessions = ShareSessions()
    here = sessions.open(KEY, "here", 5)
    there = sessions.open(SessionKey("g", "n"), "there", 5)
    sessions.update(here, [FIRST, SECOND, FIRST], [])
    sessions.update(there, [FIRST], [])
    sessions.update(here, [], [FIRST, FIRST])
    assert sessions.is_used("g", FIRST)
    assert not sessions.is_used("other", FIRST)
    assert [session.key for session in sessions.close_connection("there")] == [there.key]
    assert not sessions.is_used("g", FIRST)
    assert sessions.is_used("g", SECOND)
    sessions.open(KEY, "elsewhere", 5)  # in place of the old one
    assert not sessions.is_used("g", SECOND)
    assert sessions.close_connection("here") == []
    assert len(sessions) == 1


def test_there_is_room_for_so_many_sessions_and_for_replaced_ones() -> None:
    sessions = ShareSessions()
    sessions.open(KEY, "here", 1)
    sessions.open(KEY, "here", 1)
    with pytest.raises(ShareSessionLimitReached):
        sessions.open(SessionKey("g", "n"), "here", 1)


def test_partitions_that_gave_records_come_last() -> None:
    sessions = ShareSessions()
    session = sessions.open(KEY, "here", 1)
    sessions.update(session, [FIRST, SECOND], [])
    session.end_turn(FIRST)
    assert list(session.partitions) == [SECOND, FIRST]


def test_sessions_have_only_so_many_partitions_together() -> None:
    sessions = ShareSessions()
    many = [SharedPartition(Uuid(b"t" * 16), index) for index in range(100_000)]
    session = sessions.open(KEY, "here", 5)
    sessions.update(session, many, [])
    other = sessions.open(SessionKey("g", "n"), "here", 5)
    with pytest.raises(ShareSessionLimitReached):
        sessions.update(other, many[:1], [])
    sessions.close(KEY)
    sessions.update(other, many[:1], [])
