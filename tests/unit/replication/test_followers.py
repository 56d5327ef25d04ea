"""The followers of a partition, as its leader sees them."""

from ottla.model import BrokerId, Offset
from ottla.replication.followers import UNKNOWN_END, Follower, FollowerClock, Followers

ONE, TWO = BrokerId(1), BrokerId(2)
EPOCH = 7


def fetched(
    followers: Followers, broker: BrokerId, offset: int, leader_end: int, now_s: float
) -> None:
    followers.by_id[broker].note_fetch(EPOCH, Offset(offset), Offset(leader_end), now_s)


def test_the_slowest_decides_and_one_that_never_fetched_has_nothing() -> None:
    followers = Followers([ONE, TWO], 0.0)
    fetched(followers, ONE, 5, 9, 1.0)
    assert followers.lowest_end([ONE, TWO]) == UNKNOWN_END
    fetched(followers, TWO, 7, 9, 1.0)
    assert followers.lowest_end([ONE, TWO]) == 5
    assert followers.lowest_end([TWO]) == 7
    assert followers.lowest_end([]) is None


def test_a_follower_lags_from_when_it_last_had_everything() -> None:
    followers = Followers([ONE], 10.0)
    assert list(followers.lagging([ONE], 10.0)) == [], "it has time from the start on"
    fetched(followers, ONE, 9, 9, 12.0)
    fetched(followers, ONE, 9, 20, 15.0)
    assert list(followers.lagging([ONE], 12.0)) == []
    assert list(followers.lagging([ONE], 12.1)) == [ONE]


def test_one_that_always_has_what_was_there_at_its_last_fetch_keeps_up() -> None:
    followers = Followers([ONE], 0.0)
    end = 0
    for now_s in range(1, 100):
        fetched(followers, ONE, end, end + 10, float(now_s))
        end += 10
    assert list(followers.lagging([ONE], 98.0)) == []
    fetched(followers, ONE, end - 5, end + 10, 100.0)
    assert list(followers.lagging([ONE], 99.0)) == [ONE]


def test_a_follower_that_started_anew_is_unknown_until_it_fetches() -> None:
    followers = Followers([ONE], 0.0)
    fetched(followers, ONE, 9, 9, 1.0)
    assert list(followers.reaching(Offset(9))) == [(ONE, EPOCH)]
    assert list(followers.reaching(Offset(10))) == []
    followers.by_id[ONE].forget()
    assert followers.lowest_end([ONE]) == UNKNOWN_END
    assert list(followers.reaching(Offset(0))) == []


# A follower that has everything fetches by the clock of its session


def level(now_s: float = 1.0) -> tuple[Follower, FollowerClock]:
    """A follower that had everything at its fetch."""
    follower, clock = Follower(0.0), FollowerClock()
    follower.note_fetch(EPOCH, Offset(9), Offset(9), now_s, clock)
    return follower, clock


def test_a_follower_with_everything_is_in_time_as_long_as_its_session_fetches() -> None:
    follower, clock = level()
    assert follower.caught_up_s == 1.0, "a clock that shows nothing takes nothing away"
    clock.fetched_s = 5.0
    assert follower.caught_up_s == 5.0


def test_a_follower_that_gets_less_than_there_is_was_in_time_at_the_fetch_before() -> None:
    follower, clock = level()
    clock.fetched_s = 5.0
    follower.note_fetch(EPOCH, Offset(9), Offset(20), 6.0, clock)
    clock.fetched_s = 6.0
    assert follower.caught_up_s == 5.0
    clock.fetched_s = 50.0
    assert follower.caught_up_s == 5.0, "fetches of other partitions say nothing"
    follower.note_fetch(EPOCH, Offset(20), Offset(30), 51.0, clock)
    assert follower.caught_up_s == 6.0, "it has what was there at its last fetch"


def test_a_clock_that_is_forgotten_counts_up_to_then() -> None:
    follower, clock = level()
    clock.fetched_s = 5.0
    follower.forget_clock(FollowerClock())
    clock.fetched_s = 6.0
    assert follower.caught_up_s == 6.0, "that was the clock of another session"
    follower.forget_clock(clock)
    clock.fetched_s = 7.0
    assert follower.caught_up_s == 6.0


def test_a_follower_that_started_anew_has_no_clock() -> None:
    follower, clock = level()
    follower.forget()
    clock.fetched_s = 9.0
    assert (follower.caught_up_s, follower.end) == (1.0, UNKNOWN_END)
