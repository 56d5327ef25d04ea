"""Proof that followers have followed this leader after a point in time."""

from collections.abc import Callable, Iterable

from ottla.model import BrokerId


class FollowerContacts:
    """Waits until each of some followers has sent a fetch behind a response of this leader.

    The first fetch that is noted may have been sent long before, and have waited in a socket. The
    next one of its fetch session was sent after the response to it. A broker that fetches has not
    begun to lead, so none of them led when the wait began.
    """

    def __init__(self, awaited: Iterable[BrokerId], on_complete: Callable[[], None]) -> None:
        self._left = set(awaited)
        self._sessions: dict[BrokerId, tuple[int, int]] = {}  # of the last fetch that was noted
        self._on_complete = on_complete
        if not self._left:
            on_complete()

    def note(self, broker: BrokerId, session_id: int, session_epoch: int) -> None:
        """A follower has sent a fetch of this session; without one it shows nothing."""
        if broker not in self._left or session_id == 0:
            return
        last_id, last_epoch = self._sessions.get(broker, (0, 0))
        self._sessions[broker] = session_id, session_epoch
        if session_id == last_id and session_epoch > last_epoch:
            self._left.remove(broker)
            if not self._left:
                self._on_complete()
