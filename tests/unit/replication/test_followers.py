"""The followers of a partition, as its leader sees them."""

from ottla.model import BrokerId, Offset
from ottla.replication.followers import UNKNOWN_END, Followers

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
