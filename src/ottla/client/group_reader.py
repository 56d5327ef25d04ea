"""Reads as a member of a group, from its committed offsets on, across rebalances."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.client.errors import Refused
from ottla.client.group_member import Generation, GroupMember
from ottla.client.group_offsets import committed_offsets
from ottla.client.partitions import (
    DEFAULT_LIMITS,
    FetchLimits,
    Isolation,
    list_offsets,
)
from ottla.client.reader import FetchedBatch, ReadRange, fetch_round, take_batches
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST

_IDLE_S: Final = 0.5  # how long a member without partitions waits for a rebalance


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions were assigned to this member."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """Partitions were revoked, after their offsets were committed."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Partitions were lost: other members read again what was not committed."""

    partitions: tuple[TopicPartition, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A committed offset was out of range, and reading continues at another."""

    tp: TopicPartition
    wanted: Offset
    found: Offset


GroupEvent = Assigned | Revoked | Lost | Moved


@dataclass(frozen=True, slots=True)
class Reading:
    """Batches of one partition in order; `end` is the next offset to read."""

    tp: TopicPartition
    batches: list[FetchedBatch]
    end: Offset


class GroupReader:
    """A group consumer with at-least-once delivery, owned by its creator; owns its member.

    `next_readings` returns records, `note_done` marks them as processed, `commit` commits that.
    Before a rebalance processed records are committed; at the end call `close`. After a crash the
    next reader gets the records that were not committed.

    `start` is where a partition without committed offset is read from: `EARLIEST`, `LATEST` or a
    timestamp. `note` is called with every `GroupEvent`.
    """

    def __init__(
        self,
        member: GroupMember,
        *,
        start: int = EARLIEST,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        limits: FetchLimits = DEFAULT_LIMITS,
        note: Callable[[GroupEvent], None] = lambda event: None,
    ) -> None:
        self._member = member
        self._client = member.client
        self._start = start
        self._isolation = isolation
        self._limits = limits
        self._note = note
        self._positions: dict[TopicPartition, Offset] = {}
        self._ends: dict[TopicPartition, Offset] = {}  # at the time of the assignment
        self._done: dict[TopicPartition, Offset] = {}
        self._committed: dict[TopicPartition, Offset] = {}

    @property
    def is_at_end(self) -> bool:
        """True if everything that existed at the time of the assignment is read."""
        return not self._member.must_rejoin and all(
            position >= self._ends[tp] for tp, position in self._positions.items()
        )

    async def next_readings(self) -> list[Reading]:
        """The next records, perhaps none; joins the group first if needed.

        Waits for as long as `limits` say, or for a rebalance.
        """
        if self._member.must_rejoin:
            await self._rejoin()
        if not self._positions:
            await self._member.wait_rejoin(_IDLE_S)
            return []
        try:
            fetched = await fetch_round(
                self._client,
                {tp: ReadRange(position) for tp, position in self._positions.items()},
                self._isolation,
                self._limits,
            )
        except Refused as problem:
            if problem.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            await self._move_into_range(problem)
            return []
        readings = list[Reading]()
        for tp, data in fetched.items():
            before = ReadRange(self._positions[tp])
            found, left = take_batches(tp, data, before)
            self._positions[tp] = left.start
            if found:
                readings.append(Reading(tp, found, left.start))
            elif self._done[tp] == before.start:
                self._done[tp] = left.start  # markers and gaps are done once they are read
        return readings

    def note_done(self, tp: TopicPartition, end: Offset) -> None:
        """Mark everything before `end` as processed; ignored for partitions lost meanwhile."""
        if tp in self._positions:
            assert end >= self._done[tp], f"{tp}: done goes back from {self._done[tp]} to {end}"
            self._done[tp] = end

    async def commit(self) -> bool:
        """Commit processed offsets; False if the generation has ended and they are read again."""
        changed = {tp: end for tp, end in self._done.items() if self._committed.get(tp) != end}
        if changed:
            if not await self._member.commit(changed):
                return False
            self._committed |= changed
        return True

    async def close(self) -> None:
        """Commit processed offsets and leave the group."""
        try:
            await self._revoke()
        finally:
            await self._member.leave()

    # Rebalances

    async def _rejoin(self) -> None:
        await self._revoke()
        await self._begin(await self._member.join())

    async def _revoke(self) -> None:
        """Commit processed offsets of the partitions, and drop these."""
        tps = tuple(sorted(self._positions))
        is_committed = await self.commit()
        self._positions, self._ends, self._done, self._committed = {}, {}, {}, {}
        if tps and is_committed and self._member.lost_because is None:
            self._note(Revoked(tps))
        elif tps:
            reason = str(self._member.lost_because or "the generation has ended")
            self._note(Lost(tps, reason.removeprefix(f"group {self._member.group_id}: ")))

    async def _begin(self, generation: Generation) -> None:
        tps = sorted(generation.partitions)
        self._note(Assigned(tuple(tps), generation.membership.generation))
        if not tps:
            return
        committed = await committed_offsets(self._client, self._member.group_id, tps)
        starts, ends = await self._edges(tps)
        fresh = dict.fromkeys([tp for tp in tps if tp not in committed], self._start)
        chosen = await list_offsets(self._client, fresh, self._isolation)
        visible = await list_offsets(self._client, dict.fromkeys(tps, LATEST), self._isolation)
        for tp in tps:
            wanted = committed.get(tp, chosen.get(tp))
            self._positions[tp] = self._clip(tp, wanted, starts[tp], ends[tp])
            end = visible[tp]
            self._ends[tp] = ends[tp] if end is None else end
        # Also where nothing was read yet: the next member shall begin here, not where `start` is
        # by then, and the lag of the group shall be visible.
        self._done, self._committed = dict(self._positions), committed
        await self.commit()

    async def _move_into_range(self, problem: Refused) -> None:
        """Move positions into the range of the logs, after records were deleted or truncated."""
        starts, ends = await self._edges(list(self._positions))
        moved = {
            tp: self._clip(tp, position, starts[tp], ends[tp])
            for tp, position in self._positions.items()
        }
        if moved == self._positions:
            raise problem
        for tp, position in moved.items():
            if self._done[tp] == self._positions[tp]:  # else records are still being processed
                self._done[tp] = position
        self._positions = moved

    def _clip(
        self, tp: TopicPartition, wanted: Offset | None, start: Offset, end: Offset
    ) -> Offset:
        """The offset to read from, inside the log; its end if `wanted` is None."""
        if wanted is None:
            return end
        found = max(start, min(wanted, end))
        if found != wanted:
            self._note(Moved(tp, wanted, found))
        return found

    async def _edges(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
        """The start and end offsets of the logs, regardless of isolation."""
        starts = await list_offsets(self._client, dict.fromkeys(tps, EARLIEST))
        ends = await list_offsets(self._client, dict.fromkeys(tps, LATEST))
        zero = Offset(0)
        return {tp: starts[tp] or zero for tp in tps}, {tp: ends[tp] or zero for tp in tps}
