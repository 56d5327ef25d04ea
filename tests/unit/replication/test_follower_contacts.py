"""Followers that have followed since: a fetch that waited in a socket shows nothing."""

from ottla.model import BrokerId
from ottla.replication.follower_contacts import FollowerContacts

ONE, TWO = BrokerId(1), BrokerId(2)


class Watched:
    def __init__(self, *awaited: BrokerId) -> None:
        self.is_complete = False
        self.contacts = FollowerContacts(awaited, self._complete)

    def _complete(self) -> None:
        assert not self.is_complete, "it is said once"
        self.is_complete = True


def test_the_second_fetch_of_a_session_was_sent_behind_a_response() -> None:
    watched = Watched(ONE)
    watched.contacts.note(ONE, 7, 4)
    assert not watched.is_complete, "it may have been sent long ago"
    watched.contacts.note(ONE, 7, 5)
    assert watched.is_complete
    watched.contacts.note(ONE, 7, 6)


def test_fetches_of_two_sessions_may_both_have_waited() -> None:
    watched = Watched(ONE)
    watched.contacts.note(ONE, 7, 4)
    watched.contacts.note(ONE, 8, 5)
    assert not watched.is_complete
    watched.contacts.note(ONE, 8, 6)
    assert watched.is_complete


def test_a_fetch_without_a_session_shows_nothing() -> None:
    watched = Watched(ONE)
    for epoch in (0, 1, 2):
        watched.contacts.note(ONE, 0, epoch)
    assert not watched.is_complete


def test_every_follower_is_waited_for_and_no_other() -> None:
    watched = Watched(ONE, TWO)
    for broker in (ONE, BrokerId(3)):
        watched.contacts.note(broker, 7, 1)
        watched.contacts.note(broker, 7, 2)
    assert not watched.is_complete
    watched.contacts.note(TWO, 7, 1)
    watched.contacts.note(TWO, 7, 2)
    assert watched.is_complete


def test_nobody_to_wait_for_is_complete_at_once() -> None:
    assert Watched().is_complete
