import pytest

from ottla.broker.fetch_sessions import SESSION_PARTITIONS_MAX, FetchSessions
from ottla.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMixed,
    InvalidFetchSessionEpoch,
)
from ottla.protocol.hot_fetch import FetchedPartition, FetchPartition, FetchRequest
from ottla.protocol.hot_fields import TopicKey


class Range:
    size_bytes = 10


def request(
    *topics: tuple[TopicKey, list[int]],
    session: tuple[int, int] = (0, 0),
    offset: int = 0,
    forgotten: list[tuple[TopicKey, list[int]]] | None = None,
) -> FetchRequest:
    wanted = [(key, [FetchPartition(i, offset, 100) for i in indexes]) for key, indexes in topics]
    return FetchRequest(-1, 500, 1, 1000, 0, *session, wanted, forgotten or [])


def fetched(
    *indexes: int, watermark: int = 5
) -> list[tuple[TopicKey, list[FetchedPartition[Range]]]]:
    return [("orders", [FetchedPartition(i, 0, watermark, watermark, 0) for i in indexes])]


def test_a_reader_without_a_session_gets_none() -> None:
    sessions = FetchSessions(10)
    assert sessions.resolve(request(("orders", [0]), session=(0, -1)), by_id=False) is None
    assert len(sessions) == 0


def test_a_session_remembers_what_was_wanted_and_takes_changes() -> None:
    sessions = FetchSessions(10)
    first = sessions.resolve(request(("orders", [0, 1])), by_id=False)
    assert first is not None
    again = sessions.resolve(
        request(
            ("orders", [1, 2]),
            session=(first.session_id, 1),
            offset=7,
            forgotten=[("orders", [0])],
        ),
        by_id=False,
    )
    assert again is first
    assert again.topics() == [("orders", [FetchPartition(1, 7, 100), FetchPartition(2, 7, 100)])]


def test_epochs_count_up_and_a_wrong_one_is_refused() -> None:
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    sessions.resolve(request(session=(session.session_id, 1)), by_id=False)
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.resolve(request(session=(session.session_id, 1)), by_id=False)
    sessions.resolve(request(session=(session.session_id, 2)), by_id=False)


def test_the_epoch_wraps_to_one() -> None:
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resolve(request(session=(session.session_id, 2**31 - 1)), by_id=False)
    assert session.epoch == 1


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(FetchSessionIdNotFound):
        FetchSessions(10).resolve(request(session=(99, 1)), by_id=False)


def test_a_session_goes_by_names_or_by_ids() -> None:
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    with pytest.raises(FetchSessionTopicIdMixed):
        sessions.resolve(request(session=(session.session_id, 1)), by_id=True)


def test_the_session_that_was_not_used_for_longest_makes_room() -> None:
    sessions = FetchSessions(2)
    first = sessions.resolve(request(("a", [0])), by_id=False)
    second = sessions.resolve(request(("b", [0])), by_id=False)
    assert first is not None
    assert second is not None
    sessions.resolve(request(session=(first.session_id, 1)), by_id=False)
    sessions.resolve(request(("c", [0])), by_id=False)
    assert sessions.evicted_count == 1
    sessions.resolve(request(session=(first.session_id, 2)), by_id=False)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.resolve(request(session=(second.session_id, 1)), by_id=False)


def test_a_full_fetch_with_a_known_id_replaces_that_session() -> None:
    sessions = FetchSessions(10)
    first = sessions.resolve(request(("a", [0])), by_id=False)
    assert first is not None
    sessions.resolve(request(("a", [0]), session=(first.session_id, 0)), by_id=False)
    assert len(sessions) == 1


def test_closing_a_session_forgets_it() -> None:
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("a", [0])), by_id=False)
    assert session is not None
    sessions.resolve(request(session=(session.session_id, -1)), by_id=False)
    assert len(sessions) == 0


def test_without_slots_there_are_no_sessions() -> None:
    assert FetchSessions(0).resolve(request(("a", [0])), by_id=False) is None


def test_only_news_is_told() -> None:
    session = FetchSessions(10).resolve(request(("orders", [0, 1])), by_id=False)
    assert session is not None
    assert session.changes(fetched(0, 1)) == fetched(0, 1)
    assert session.changes(fetched(0, 1)) == []
    assert session.changes(fetched(0) + fetched(1, watermark=6)) == fetched(1, watermark=6)


def test_an_error_is_told_each_time() -> None:
    session = FetchSessions(10).resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    failed: list[tuple[TopicKey, list[FetchedPartition[Range]]]] = [
        ("orders", [FetchedPartition(0, error_code=3)])
    ]
    assert session.changes(failed) == failed
    assert session.changes(failed) == failed


def test_a_partition_that_gave_data_waits_for_the_others() -> None:
    session = FetchSessions(10).resolve(request(("orders", [0, 1, 2])), by_id=False)
    assert session is not None
    session.changes([("orders", [FetchedPartition(0, 0, 5, 5, 0, records=Range())])])
    assert [p.partition for _, partitions in session.topics() for p in partitions] == [1, 2, 0]


def test_a_partition_that_was_forgotten_while_it_was_read_is_left_out() -> None:
    """A session can be used from another connection meanwhile."""
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("orders", [0, 1])), by_id=False)
    assert session is not None
    forgetting = request(session=(session.session_id, 1), forgotten=[("orders", [0])])
    sessions.resolve(forgetting, by_id=False)
    assert session.changes(fetched(0, 1)) == fetched(1)
    assert [p.partition for _, partitions in session.topics() for p in partitions] == [1]


def test_a_reader_of_too_many_partitions_gets_no_session() -> None:
    sessions = FetchSessions(10)
    most = list(range(SESSION_PARTITIONS_MAX))
    assert sessions.resolve(request(("a", most), ("b", [0])), by_id=False) is None
    assert sessions.resolve(request(("a", most)), by_id=False) is not None


def test_a_session_that_grows_too_large_is_closed() -> None:
    sessions = FetchSessions(10)
    session = sessions.resolve(request(("a", list(range(SESSION_PARTITIONS_MAX)))), by_id=False)
    assert session is not None
    more = request(("b", [0]), session=(session.session_id, 1))
    with pytest.raises(FetchSessionIdNotFound, match="too many partitions for a fetch session"):
        sessions.resolve(more, by_id=False)
    assert len(sessions) == 0
