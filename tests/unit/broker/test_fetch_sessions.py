import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.fetch_sessions import (
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
)
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMixed,
    InvalidFetchSessionEpoch,
    NotLeader,
)
from ottla.model import BrokerId, Offset
from ottla.protocol.hot_fetch import FetchedPartition, FetchPartition, FetchRequest
from ottla.protocol.hot_fields import TopicKey
from ottla.replication.partition import ACKS_LEADER, LeaderPartition
from ottla.storage.log import Log

LEADER, FOLLOWER, OTHER = BrokerId(1), BrokerId(2), BrokerId(3)
EPOCH = 7
CONFIG = TopicConfig(durability=Durability.REPLICATED)


class Range:
    size_bytes = 10


class NoFlusher:
    def request(self, log: Log) -> None:
        return


def sessions_of(slots: int) -> FetchSessions:
    """Fetches that wait are woken at once."""
    return FetchSessions(slots, soon=lambda callback: callback())


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
    sessions = sessions_of(10)
    assert sessions.resolve(request(("orders", [0]), session=(0, -1)), by_id=False) is None
    assert len(sessions) == 0


def test_a_session_remembers_what_was_wanted_and_takes_changes() -> None:
    sessions = sessions_of(10)
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
    assert again.wanted() == [("orders", [FetchPartition(1, 7, 100), FetchPartition(2, 7, 100)])]


def test_epochs_count_up_and_a_wrong_one_is_refused() -> None:
    sessions = sessions_of(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    sessions.resolve(request(session=(session.session_id, 1)), by_id=False)
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.resolve(request(session=(session.session_id, 1)), by_id=False)
    sessions.resolve(request(session=(session.session_id, 2)), by_id=False)


def test_the_epoch_wraps_to_one() -> None:
    sessions = sessions_of(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resolve(request(session=(session.session_id, 2**31 - 1)), by_id=False)
    assert session.epoch == 1


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(FetchSessionIdNotFound):
        sessions_of(10).resolve(request(session=(99, 1)), by_id=False)


def test_a_session_goes_by_names_or_by_ids() -> None:
    sessions = sessions_of(10)
    session = sessions.resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    with pytest.raises(FetchSessionTopicIdMixed):
        sessions.resolve(request(session=(session.session_id, 1)), by_id=True)


def test_the_session_that_was_not_used_for_longest_makes_room() -> None:
    sessions = sessions_of(2)
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
    sessions = sessions_of(10)
    first = sessions.resolve(request(("a", [0])), by_id=False)
    assert first is not None
    sessions.resolve(request(("a", [0]), session=(first.session_id, 0)), by_id=False)
    assert len(sessions) == 1


def test_closing_a_session_forgets_it() -> None:
    sessions = sessions_of(10)
    session = sessions.resolve(request(("a", [0])), by_id=False)
    assert session is not None
    sessions.resolve(request(session=(session.session_id, -1)), by_id=False)
    assert len(sessions) == 0


def test_without_slots_there_are_no_sessions() -> None:
    assert sessions_of(0).resolve(request(("a", [0])), by_id=False) is None


def test_only_news_is_told() -> None:
    session = sessions_of(10).resolve(request(("orders", [0, 1])), by_id=False)
    assert session is not None
    assert session.changes(fetched(0, 1)) == fetched(0, 1)
    assert session.changes(fetched(0, 1)) == []
    assert session.changes(fetched(0) + fetched(1, watermark=6)) == fetched(1, watermark=6)


def test_an_error_is_told_each_time() -> None:
    session = sessions_of(10).resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    failed: list[tuple[TopicKey, list[FetchedPartition[Range]]]] = [
        ("orders", [FetchedPartition(0, error_code=3)])
    ]
    assert session.changes(failed) == failed
    assert session.changes(failed) == failed


def test_the_end_of_an_error_is_told_though_nothing_else_has_changed() -> None:
    session = sessions_of(10).resolve(request(("orders", [0])), by_id=False)
    assert session is not None
    failed: list[tuple[TopicKey, list[FetchedPartition[Range]]]] = [
        ("orders", [FetchedPartition(0, error_code=3)])
    ]
    session.changes(fetched(0))
    session.changes(failed)
    assert session.changes(fetched(0)) == fetched(0)
    assert session.changes(fetched(0)) == []


def test_a_partition_that_gave_data_waits_for_the_others() -> None:
    session = sessions_of(10).resolve(request(("orders", [0, 1, 2])), by_id=False)
    assert session is not None
    session.changes([("orders", [FetchedPartition(0, 0, 5, 5, 0, records=Range())])])
    assert [p.partition for _, partitions in session.wanted() for p in partitions] == [1, 2, 0]


def test_a_partition_that_was_forgotten_while_it_was_read_is_left_out() -> None:
    """A session can be used from another connection meanwhile."""
    sessions = sessions_of(10)
    session = sessions.resolve(request(("orders", [0, 1])), by_id=False)
    assert session is not None
    forgetting = request(session=(session.session_id, 1), forgotten=[("orders", [0])])
    sessions.resolve(forgetting, by_id=False)
    assert session.changes(fetched(0, 1)) == fetched(1)
    assert list(session.partitions) == [("orders", 1)]


def test_a_reader_of_too_many_partitions_gets_no_session() -> None:
    sessions = sessions_of(10)
    most = list(range(SESSION_PARTITIONS_MAX))
    assert sessions.resolve(request(("a", most), ("b", [0])), by_id=False) is None
    assert sessions.resolve(request(("a", most)), by_id=False) is not None


def test_a_session_that_grows_too_large_is_closed() -> None:
    sessions = sessions_of(10)
    session = sessions.resolve(request(("a", list(range(SESSION_PARTITIONS_MAX)))), by_id=False)
    assert session is not None
    more = request(("b", [0]), session=(session.session_id, 1))
    with pytest.raises(FetchSessionIdNotFound, match="too many partitions for a fetch session"):
        sessions.resolve(more, by_id=False)
    assert len(sessions) == 0


# What is due


def led() -> LeaderPartition:
    """A partition with two followers, of which one is in sync."""
    return led_partition(
        build.TP,
        build.log(MemoryFiles(), CONFIG),
        broker_id=LEADER,
        leader_epoch=build.EPOCH,
        replicas=(LEADER, FOLLOWER, OTHER),
        isr=(LEADER, FOLLOWER),
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )


def append(partition: LeaderPartition) -> None:
    partition.append(memoryview(build.batch()), ACKS_LEADER, build.NOW_MS)


def commit(partition: LeaderPartition, now_s: float = 0.0) -> None:
    partition.note_fetch(FOLLOWER, EPOCH, partition.log.end_offset, now_s)


class Opened:
    """A session of one partition, which is watched and not due."""

    def __init__(self, partition: LeaderPartition, replica: int = -1) -> None:
        self.sessions = sessions_of(10)
        epoch = -1 if replica < 0 else EPOCH
        opening = request(("t", [0]))._replace(replica_id=replica, replica_epoch=epoch)
        session = self.sessions.resolve(opening, by_id=False)
        assert session is not None
        self.session: FetchSession = session
        self.woken = 0
        session.readers[self._wake] = None
        session.watching(lambda *_: partition)("t", 0)
        self.read(partition)
        self.woken = 0

    def _wake(self) -> None:
        self.woken += 1

    def read(self, partition: LeaderPartition) -> None:
        """The reader is told of the partition as it is, and that there are no records for it."""
        watermark = partition.high_watermark
        start = partition.log.start_offset
        told: list[FetchedPartition[Range]] = [FetchedPartition(0, 0, watermark, watermark, start)]
        self.session.changes([("t", told)])

    @property
    def is_due(self) -> bool:
        return bool(self.session.wanted())


def test_a_consumers_partition_is_due_when_more_is_committed() -> None:
    partition = led()
    opened = Opened(partition)
    assert not opened.is_due
    append(partition)
    assert (opened.is_due, opened.woken) == (False, 0)
    commit(partition)
    assert (opened.is_due, opened.woken) == (True, 1)
    opened.read(partition)
    assert not opened.is_due


def test_a_followers_partition_is_due_when_more_is_appended() -> None:
    partition = led()
    opened = Opened(partition, FOLLOWER)
    append(partition)
    assert (opened.is_due, opened.woken) == (True, 1)
    opened.read(partition)
    assert not opened.is_due


def test_a_follower_learns_with_the_next_records_what_is_committed() -> None:
    partition = led()
    opened = Opened(partition, FOLLOWER)
    append(partition)
    opened.read(partition)
    commit(partition)
    assert (opened.is_due, opened.woken) == (True, 1), "due, but not woken for it"


def test_a_follower_with_consumers_is_woken_for_what_is_committed() -> None:
    partition = led()
    opened = Opened(partition, FOLLOWER)
    append(partition)
    want = FetchPartition(0, 0, 100, high_watermark=0)
    opened.session.update([("t", [want])])
    opened.read(partition)
    commit(partition)
    assert (opened.is_due, opened.woken) == (True, 2)


@pytest.mark.parametrize("replica", [-1, FOLLOWER])
def test_a_partition_is_due_when_its_log_begins_later_or_it_is_lost(replica: int) -> None:
    partition = led()
    append(partition)
    commit(partition)
    opened = Opened(partition, replica)
    partition.log.advance_start(Offset(1))
    partition.watchers.note_committed()
    assert opened.is_due
    opened.read(partition)
    assert not opened.is_due
    opened.woken = 0
    partition.give_up(NotLeader("lost"))
    assert (opened.is_due, opened.woken) == (True, 1)


def test_a_partition_stays_due_until_its_reader_has_taken_what_it_was_sent() -> None:
    partition = led()
    opened = Opened(partition)
    append(partition)
    commit(partition)
    for told in (
        FetchedPartition(0, 0, 1, 1, 0, records=Range()),
        FetchedPartition[Range](0, error_code=6),
        FetchedPartition[Range](0, 0, 1, 1, 0, is_urgent=True),
    ):
        assert opened.session.changes([("t", [told])]) == [("t", [told])]
        opened.session.rest([("t", [told])])
        assert opened.is_due
    opened.read(partition)
    assert not opened.is_due


def test_marks_that_the_reader_does_not_know_stay_due_while_its_fetch_waits() -> None:
    partition = led()
    opened = Opened(partition, FOLLOWER)
    opened.session.rest([("t", [FetchedPartition(0, 0, 9, 9, 0)])])
    opened.session.note_due(opened.session.partitions["t", 0])
    opened.session.rest([("t", [FetchedPartition(0, 0, 9, 9, 0)])])
    assert opened.is_due
    opened.session.rest([("t", [FetchedPartition(0, 0, 0, 0, 0)])])
    assert not opened.is_due


def test_a_follower_out_of_sync_is_heard_of_with_every_fetch() -> None:
    partition = led()
    assert Opened(partition, OTHER).is_due
    assert not Opened(partition, FOLLOWER).is_due


def test_each_fetch_of_a_follower_counts_while_its_leader_has_to_know_who_follows() -> None:
    partition = led()
    opened = Opened(partition, FOLLOWER)
    partition.watch_contacts(lambda: None)
    assert opened.is_due
    opened.read(partition)
    assert opened.is_due
    partition.contacts = None
    opened.read(partition)
    assert not opened.is_due


def test_a_partition_that_is_led_anew_is_watched_instead_of_the_one_before() -> None:
    before, after = led(), led()
    opened = Opened(before)
    opened.session.watching(lambda *_: after)("t", 0)
    append(before)
    commit(before)
    assert not opened.is_due
    append(after)
    commit(after)
    assert opened.is_due


def test_a_partition_that_is_not_found_is_watched_no_more() -> None:
    partition = led()
    opened = Opened(partition)

    def locate(key: TopicKey, index: int) -> LeaderPartition:
        raise NotLeader("another broker leads it")

    with pytest.raises(NotLeader):
        opened.session.watching(locate)("t", 0)
    append(partition)
    commit(partition)
    assert not opened.is_due


@pytest.mark.parametrize("way", ["forgotten", "closed"])
def test_fetches_say_nothing_of_a_partition_that_the_session_no_longer_has(way: str) -> None:
    """A follower that stopped to fetch a partition must not look as if it had everything."""
    partition = led()
    opened = Opened(partition, FOLLOWER)
    follower = opened.session.follower
    assert follower is not None
    partition.note_fetch(FOLLOWER, EPOCH, Offset(0), 1.0, follower.clock)
    follower.clock.fetched_s = 5.0
    known = partition.followers.by_id[FOLLOWER]
    assert known.caught_up_s == 5.0
    if way == "forgotten":
        opened.session.forget([("t", [0])])
    else:
        opened.session.close()
        assert opened.woken == 1
    follower.clock.fetched_s = 9.0
    assert known.caught_up_s == 5.0
    append(partition)
    assert opened.woken == (1 if way == "closed" else 0)


def test_a_closed_session_watches_nothing_again() -> None:
    partition = led()
    opened = Opened(partition)
    opened.session.close()
    opened.session.due.clear()
    opened.session.watching(lambda *_: partition)("t", 0)
    append(partition)
    commit(partition)
    assert not opened.is_due


def test_a_session_belongs_to_one_registration_of_a_broker() -> None:
    opened = Opened(led(), FOLLOWER)
    again = request(session=(opened.session.session_id, 1))
    for replica, epoch in ((-1, -1), (OTHER, EPOCH), (FOLLOWER, EPOCH + 1)):
        stranger = again._replace(replica_id=replica, replica_epoch=epoch)
        with pytest.raises(FetchSessionIdNotFound, match="another reader's"):
            opened.sessions.resolve(stranger, by_id=False)
    own = again._replace(replica_id=FOLLOWER, replica_epoch=EPOCH)
    assert opened.sessions.resolve(own, by_id=False) is opened.session


def test_a_follower_has_one_session_however_often_it_connects() -> None:
    opened = Opened(led(), FOLLOWER)
    opening = request(("t", [0]))._replace(replica_id=FOLLOWER, replica_epoch=EPOCH)
    latest = opened.sessions.resolve(opening, by_id=False)
    assert latest is not None
    assert (opened.session.is_closed, latest.is_closed, len(opened.sessions)) == (True, False, 1)


def test_a_consumer_that_may_be_sent_elsewhere_has_everything_read() -> None:
    opened = Opened(led())
    opened.session.read_all()
    assert opened.is_due


def test_a_partition_without_room_in_the_response_stays_due() -> None:
    opened = Opened(led())
    opened.session.read_all()
    left_out: list[FetchedPartition[Range]] = [FetchedPartition(0, 0, 0, 0, 0, is_left_out=True)]
    assert opened.session.changes([("t", left_out)]) == []
    opened.session.rest([("t", left_out)])
    assert opened.is_due
