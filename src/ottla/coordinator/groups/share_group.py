"""A share group (KIP-932): its members read the same partitions, and no partition is revoked.

There are the three epochs of a consumer group. A member reaches its target in its next heartbeat,
for no other member has to give up a partition first.

The share coordinator keeps the state of each partition that the group reads. Before a member
gets a partition in a response, the state is initialised: `initializing` are those partitions,
and the caller reports them to `note_initialized`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ottla.coordinator.groups.share_assignor import assign
from ottla.coordinator.groups.share_records import (
    ShareCurrentSet,
    ShareEpochSet,
    ShareGroupDropped,
    ShareGroupRecord,
    ShareKey,
    ShareMemberStored,
    ShareStateTopics,
    ShareTargetEpochSet,
    ShareTargetSet,
)
from ottla.coordinator.groups.topics import (
    NOTHING,
    IdPartition,
    Partitions,
    Topic,
    Topics,
    topics_fingerprint,
)
from ottla.errors import (
    ErrorCode,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
)
from ottla.model import Uuid

JOINING: Final = 0  # instead of an epoch
LEAVING: Final = -1
_MEMBER_ID_LENGTH_MAX: Final = 36
_SUBSCRIPTION_BYTES_MAX: Final = 1 << 20


class ShareGroupState(StrEnum):
    """States by the names that clients and tools show."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLimits:
    """Settings of share groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    members_max: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """The fields of ShareGroupHeartbeat; None means unchanged."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""

    def check(self) -> None:
        """Raise InvalidRequest if the fields contradict each other, whatever the group's state."""
        if not 0 < len(self.member_id) <= _MEMBER_ID_LENGTH_MAX:
            raise InvalidRequest(f"a member id has 1 to {_MEMBER_ID_LENGTH_MAX} characters")
        if self.epoch < LEAVING:
            raise InvalidRequest(f"{self.epoch} is not the epoch of a member")
        if self.rack_id == "":
            raise InvalidRequest("a rack id must not be empty")
        if self.epoch == JOINING and not self.topics:
            raise InvalidRequest("topics must be given when joining")
        if sum(4 * len(name) for name in self.topics or ()) > _SUBSCRIPTION_BYTES_MAX:
            raise InvalidRequest("the subscription is too large: subscribe to fewer topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatResult:
    """The result of a heartbeat; `assigned` is None if it has not changed.

    It is sent once the states of `initializing` are there.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None
    initializing: Partitions = NOTHING


@dataclass(slots=True)
class ShareGroup:
    """Owned by a shard. `replay` is the only writer of all that is in the log."""

    group_id: str
    limits: Callable[[], ShareGroupLimits]
    topics: Callable[[], Topics]
    epoch: int = 0
    target_epoch: int = 0
    fingerprint: int = 0  # of the topics as they were in `epoch`
    members: dict[str, ShareMemberStored] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, ShareCurrentSet] = field(default_factory=dict)
    state_topics: ShareStateTopics = field(init=False)
    _sessions: dict[str, int] = field(default_factory=dict)  # deadlines of heartbeats, in ms
    _topics_seen: Mapping[str, Topic] | None = None  # when the epoch was last computed
    _records: list[ShareGroupRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state_topics = ShareStateTopics(group_id=self.group_id)

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # Heartbeats

    def heartbeat(self, heartbeat: ShareHeartbeat, now_ms: int) -> ShareHeartbeatResult:
        """Raises an ApiError, and nothing has changed; `take_records` has what is to be written."""
        heartbeat.check()
        known = self.members.get(heartbeat.member_id)
        if heartbeat.epoch != JOINING and known is None:
            raise UnknownMemberId(f"{heartbeat.member_id!r} is not a member of {self.group_id!r}")
        if heartbeat.epoch == LEAVING:
            self._remove([heartbeat.member_id], now_ms)
            return ShareHeartbeatResult(member_id=heartbeat.member_id, epoch=LEAVING)
        before = self.current(heartbeat.member_id)
        if heartbeat.epoch != JOINING and heartbeat.epoch not in {
            before.epoch,
            before.previous_epoch,
        }:
            raise FencedMemberEpoch(
                f"the member is in epoch {before.epoch}, not {heartbeat.epoch}: join again"
            )
        if known is None and len(self.members) >= self.limits().members_max:
            raise GroupMaxSizeReached(f"{self.group_id!r} has as many members as it may")
        self._admit(known, self._updated(known, heartbeat), now_ms)
        after = self.current(heartbeat.member_id)
        is_full = heartbeat.epoch != after.epoch or heartbeat.topics is not None
        is_changed = is_full or after.assigned != before.assigned
        return ShareHeartbeatResult(
            member_id=heartbeat.member_id,
            epoch=after.epoch,
            interval_ms=self.limits().heartbeat_interval_ms,
            assigned=after.assigned if is_changed else None,
            initializing=self.state_topics.initializing,
        )

    def _updated(
        self, known: ShareMemberStored | None, heartbeat: ShareHeartbeat
    ) -> ShareMemberStored:
        topics = () if known is None else known.topics
        rack_id = None if known is None or heartbeat.epoch == JOINING else known.rack_id
        return ShareMemberStored(
            group_id=self.group_id,
            member_id=heartbeat.member_id,
            rack_id=heartbeat.rack_id or rack_id,
            client_id=heartbeat.client_id,
            client_host=heartbeat.client_host,
            topics=topics if heartbeat.topics is None else tuple(sorted(heartbeat.topics)),
        )

    def _admit(
        self, known: ShareMemberStored | None, member: ShareMemberStored, now_ms: int
    ) -> None:
        if member != known:
            self._write(member, now_ms)
        self._refresh(now_ms, is_changed=known is None or known.topics != member.topics)
        current, target = self.current(member.member_id), self.target(member.member_id)
        if (current.epoch, current.assigned) != (self.target_epoch, target):
            following = replace(
                current,
                epoch=self.target_epoch,
                previous_epoch=current.epoch,
                assigned=target,
            )
            self._write(following, now_ms)
        self._sessions[member.member_id] = now_ms + self.limits().session_timeout_ms

    def _refresh(self, now_ms: int, *, is_changed: bool) -> None:
        """Begin a new epoch, with new targets, if subscriptions or topics have changed."""
        topics = self.topics()
        if not is_changed and topics.topics is self._topics_seen:
            return
        self._topics_seen = topics.topics
        mark = topics_fingerprint(self.subscribed_topics(), topics)
        if is_changed or mark != self.fingerprint:
            epoch = ShareEpochSet(group_id=self.group_id, epoch=self.epoch + 1, fingerprint=mark)
            self._write(epoch, now_ms)
            self._retarget(topics, now_ms)
            self._want_states(topics, now_ms)

    def _retarget(self, topics: Topics, now_ms: int) -> None:
        known = topics.topics
        subscriptions = {
            member.member_id: frozenset(known[name].id for name in member.topics if name in known)
            for member in self.members.values()
        }
        targets = assign(subscriptions, _counts(self.subscribed_topics(), topics))
        for member_id, partitions in targets.items():
            if self.targets.get(member_id) != partitions:
                self._write(
                    ShareTargetSet(
                        group_id=self.group_id, member_id=member_id, partitions=partitions
                    ),
                    now_ms,
                )
        self._write(ShareTargetEpochSet(group_id=self.group_id, epoch=self.epoch), now_ms)

    # States of partitions

    def _want_states(self, topics: Topics, now_ms: int) -> None:
        """Note partitions without a state as to be initialised; forget those of deleted topics."""
        known, names = self.state_topics, topics.topic_names
        live = frozenset(p for p in known.initialized if p.topic_id in names)
        counts = _counts(self.subscribed_topics(), topics)
        read = (IdPartition(t, index) for t, count in counts.items() for index in range(count))
        wanted = frozenset(read) - live
        self._set_states(replace(known, initializing=wanted, initialized=live), now_ms)

    def note_initialized(self, partitions: Partitions, now_ms: int) -> None:
        """The share coordinator has these states now."""
        known = self.state_topics
        self._set_states(
            replace(
                known,
                initializing=known.initializing - partitions,
                initialized=known.initialized | (partitions & known.initializing),
                deleting=known.deleting - {p.topic_id for p in partitions},
            ),
            now_ms,
        )

    def begin_deletion(self, topic_ids: frozenset[Uuid], now_ms: int) -> None:
        """The states of these topics are about to be deleted: they count no longer."""
        known = self.state_topics
        self._set_states(
            replace(
                known,
                initializing=frozenset(
                    p for p in known.initializing if p.topic_id not in topic_ids
                ),
                initialized=frozenset(p for p in known.initialized if p.topic_id not in topic_ids),
                deleting=known.deleting | topic_ids,
            ),
            now_ms,
        )

    def end_deletion(self, topic_ids: frozenset[Uuid], now_ms: int) -> None:
        """The share coordinator has no states of these topics any more."""
        known = self.state_topics
        self._set_states(replace(known, deleting=known.deleting - topic_ids), now_ms)

    def begin_states(self, partitions: Partitions, now_ms: int) -> int:
        """An administrator begins states anew: the state epoch in which that is to happen."""
        known = self.state_topics
        epoch = ShareEpochSet(
            group_id=self.group_id, epoch=self.epoch + 1, fingerprint=self.fingerprint
        )
        self._write(epoch, now_ms)
        # A state that is there already keeps counting as such: a heartbeat must not begin it anew.
        wanted = known.initializing | (partitions - known.initialized)
        self._set_states(replace(known, initializing=wanted), now_ms)
        return self.epoch

    def _set_states(self, changed: ShareStateTopics, now_ms: int) -> None:
        named = {p.topic_id for p in changed.initializing | changed.initialized} | changed.deleting
        names = {**dict(changed.names), **self.topics().topic_names}
        changed = replace(changed, names=tuple((t, names.get(t, "")) for t in sorted(named)))
        if changed != self.state_topics:
            self._write(changed, now_ms)

    # Leaving

    def pass_time(self, now_ms: int) -> None:
        """Remove members whose heartbeats have ceased."""
        gone = [member_id for member_id, end_ms in self._sessions.items() if end_ms <= now_ms]
        self._remove(gone, now_ms)

    def next_deadline_ms(self) -> int | None:
        """The time at which `pass_time` next changes something, at the latest."""
        return min(self._sessions.values(), default=None)

    def _remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        gone = list(member_ids)
        for member_id in gone:
            for key, held in (
                (ShareKey.CURRENT, self.currents),
                (ShareKey.TARGET, self.targets),
                (ShareKey.MEMBER, self.members),
            ):
                if member_id in held:
                    self._write(self._tombstone(key, member_id), now_ms)
        if gone:
            self._refresh(now_ms, is_changed=True)

    # Queries

    def current(self, member_id: str) -> ShareCurrentSet:
        """The current assignment of a member; empty, in epoch 0, until it gets its first."""
        return self.currents.get(member_id) or ShareCurrentSet(
            group_id=self.group_id, member_id=member_id
        )

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def subscribed_topics(self) -> frozenset[str]:
        """The topic names that any member subscribes to, whether or not they exist."""
        return frozenset(name for member in self.members.values() for name in member.topics)

    def tombstones(self) -> tuple[ShareGroupRecord, ...]:
        """Records that remove the group from the log; that of its epoch is the last."""
        return (
            *(self._tombstone(ShareKey.CURRENT, member_id) for member_id in self.currents),
            *(self._tombstone(ShareKey.TARGET, member_id) for member_id in self.targets),
            *(self._tombstone(ShareKey.MEMBER, member_id) for member_id in self.members),
            self._tombstone(ShareKey.TARGET_EPOCH),
            self._tombstone(ShareKey.STATE_TOPICS),
            self._tombstone(ShareKey.EPOCH),
        )

    def _tombstone(self, key: ShareKey, member_id: str = "") -> ShareGroupDropped:
        return ShareGroupDropped(group_id=self.group_id, key=key, member_id=member_id)

    # Replaying

    def replay(self, record: ShareGroupRecord, now_ms: int) -> None:
        assert record.group_id == self.group_id, "a record is replayed by the group it names"
        match record:
            case ShareEpochSet():
                self.epoch, self.fingerprint = record.epoch, record.fingerprint
            case ShareTargetEpochSet():
                self.target_epoch = record.epoch
            case ShareMemberStored():
                self.members[record.member_id] = record
                end_ms = now_ms + self.limits().session_timeout_ms
                self._sessions.setdefault(record.member_id, end_ms)
            case ShareTargetSet():
                self.targets[record.member_id] = record.partitions
            case ShareCurrentSet():
                self.currents[record.member_id] = record
            case ShareStateTopics():
                self.state_topics = record
            case ShareGroupDropped():
                self._replay_drop(record)
            case _:
                raise AssertionError(f"{record!r} is no record of a share group")

    def _replay_drop(self, record: ShareGroupDropped) -> None:
        match record.key:
            case ShareKey.MEMBER:
                self.members.pop(record.member_id, None)
                self._sessions.pop(record.member_id, None)
            case ShareKey.TARGET:
                self.targets.pop(record.member_id, None)
            case ShareKey.CURRENT:
                self.currents.pop(record.member_id, None)
            case _:
                pass  # the group itself is removed as a whole

    def take_records(self) -> tuple[ShareGroupRecord, ...]:
        """The records of the last event, which are replayed already."""
        records = tuple(self._records)
        self._records.clear()
        return records

    def _write(self, record: ShareGroupRecord, now_ms: int) -> None:
        self._records.append(record)
        self.replay(record, now_ms)


def _counts(names: Iterable[str], topics: Topics) -> dict[Uuid, int]:
    """Numbers of partitions of the topics that exist."""
    known = topics.topics
    return {known[name].id: known[name].listed_count for name in names if name in known}
