"""The followers of a partition, as its leader sees them: how far each is, and since when."""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import Final

from ottla.cluster.values import UNREGISTERED
from ottla.model import NO_OFFSET, BrokerId, Offset

UNKNOWN_END: Final = NO_OFFSET  # of a follower that has not fetched from this leader


class FollowerClock:
    """When a follower last fetched in a session, whichever partitions that was about."""

    __slots__ = ("fetched_s",)

    def __init__(self) -> None:
        self.fetched_s = -inf


class Follower:
    """A follower of a partition. Below its end, from which it fetches, it has everything.

    While that is all there is, its fetches need not name the partition: the clock of its session
    says when there was one. A fetch behind the next append names the partition again.
    """

    __slots__ = ("_caught_up_s", "_clock", "_fetched_s", "end", "epoch", "leader_end")

    def __init__(self, now_s: float) -> None:
        self.end = UNKNOWN_END
        self.epoch = UNREGISTERED  # of its registration when it fetched
        self.leader_end = UNKNOWN_END  # at its last fetch
        self._caught_up_s = now_s
        self._fetched_s = now_s
        self._clock: FollowerClock | None = None  # while it has everything

    @property
    def caught_up_s(self) -> float:
        """When it last had everything that the leader had."""
        if self._clock is None:
            return self._caught_up_s
        return max(self._caught_up_s, self._clock.fetched_s)

    def note_fetch(
        self,
        epoch: int,
        offset: Offset,
        leader_end: Offset,
        now_s: float,
        clock: FollowerClock | None = None,
    ) -> None:
        """Note a fetch. A follower with all that was there at its last fetch is in time.

        `clock` is that of the fetch's session, and shows the session's fetch before this one.
        """
        if self._clock is not None:
            self.forget_clock(self._clock)
        if offset >= leader_end:
            self._caught_up_s = now_s
            self._clock = clock
        elif epoch == self.epoch and offset >= self.leader_end:
            self._caught_up_s = max(self._caught_up_s, self._fetched_s)
        self.epoch, self.end = epoch, offset
        self._fetched_s, self.leader_end = now_s, leader_end

    def forget_clock(self, clock: FollowerClock) -> None:
        """Fetches by this clock no longer count; the last one that did is noted."""
        if self._clock is clock:
            self._caught_up_s = max(self._caught_up_s, clock.fetched_s)
            self._fetched_s = max(self._fetched_s, clock.fetched_s)
            self._clock = None

    def forget(self) -> None:
        """Forget how far the follower is: its log may have become shorter since its last fetch."""
        if self._clock is not None:
            self.forget_clock(self._clock)
        self.end, self.epoch, self.leader_end = UNKNOWN_END, UNREGISTERED, UNKNOWN_END


class Followers:
    """All followers of one partition, since its leader began to lead."""

    def __init__(self, brokers: Iterable[BrokerId], now_s: float) -> None:
        self.by_id = {broker: Follower(now_s) for broker in brokers}

    def change(self, brokers: Iterable[BrokerId], now_s: float) -> None:
        """Other brokers have replicas now: forget those that do not, know those that are new."""
        known = self.by_id
        self.by_id = {broker: known.get(broker) or Follower(now_s) for broker in brokers}

    def forget_others(self, kept: Collection[BrokerId]) -> None:
        """Forget how far every follower is that is not among some."""
        for broker, follower in self.by_id.items():
            if broker not in kept:
                follower.forget()

    def forget_clock(self, broker: BrokerId, clock: FollowerClock) -> None:
        """Later fetches of this session say nothing about the partition any more."""
        follower = self.by_id.get(broker)
        if follower is not None:
            follower.forget_clock(clock)

    def lowest_end(self, brokers: Iterable[BrokerId]) -> Offset | None:
        """The offset below which each of these followers has everything; None without any."""
        by_id = self.by_id
        return min((by_id[broker].end for broker in brokers if broker in by_id), default=None)

    def lagging(self, brokers: Iterable[BrokerId], caught_up_s_min: float) -> Iterator[BrokerId]:
        """The brokers, of those given, that have not had everything since then."""
        for broker in brokers:
            follower = self.by_id.get(broker)
            if follower is not None and follower.caught_up_s < caught_up_s_min:
                yield broker

    def reaching(self, offset: Offset) -> Iterator[tuple[BrokerId, int]]:
        """The followers that have everything below `offset`, each with its broker epoch."""
        for broker, follower in self.by_id.items():
            if follower.end >= offset:
                yield broker, follower.epoch

    def lag(self, end: Offset, now_s: float) -> tuple[int, float]:
        """The most records, of those below `end`, and seconds that a follower is behind."""
        records, caught_up_s = 0, now_s
        for follower in self.by_id.values():
            if follower.end < end:
                caught_up_s = min(caught_up_s, follower.caught_up_s)
                if follower.end != UNKNOWN_END:
                    records = max(records, end - follower.end)
        return records, now_s - caught_up_s
