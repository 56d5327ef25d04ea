"""All groups of one shard, share groups included. A group id belongs to one kind of group."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ottla.coordinator.groups.classic_protocol import GroupLimits, Join, Joined
from ottla.coordinator.groups.consumer_group import ConsumerLimits
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.descriptions import (
    GroupSummary,
    GroupType,
    ListedGroup,
    ShareGroupDescription,
    describe_share_group,
    list_group,
)
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.records import GroupDecision, GroupEvent
from ottla.coordinator.groups.share_group import (
    JOINING,
    ShareGroup,
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from ottla.coordinator.groups.share_records import ShareGroupDropped, ShareGroupRecord, ShareKey
from ottla.coordinator.groups.topics import NO_TOPICS, NOTHING, Partitions, Topics
from ottla.coordinator.runtime.decision import A, Decision, Responses, Ticket
from ottla.errors import ApiError, ErrorCode
from ottla.model import Uuid

SHARE: str = "share"  # protocol type, as ListGroups shows it


class ShareStatesKnown(NamedTuple):
    """The partitions of a share group that have a state, or an error instead."""

    error: ErrorCode
    partitions: Partitions = NOTHING
    state_epoch: int = 0
    initializing: Partitions = NOTHING  # those that are to get one
    deleting: frozenset[Uuid] = frozenset()  # topics whose states may be there still


class AllGroups(Groups):
    """The machine of a shard."""

    __slots__ = ("_share_limits", "share")

    def __init__(
        self,
        limits: Callable[[], GroupLimits],
        new_id: Callable[[], str],
        metadata_bytes_max: Callable[[], int] = lambda: 4096,
        consumer_limits: Callable[[str], ConsumerLimits] = lambda group_id: ConsumerLimits(),
        topics: Callable[[], Topics] = lambda: NO_TOPICS,
        has_room: Callable[[], bool] = lambda: True,
        share_limits: Callable[[str], ShareGroupLimits] = lambda group_id: ShareGroupLimits(),
    ) -> None:
        super().__init__(limits, new_id, metadata_bytes_max, consumer_limits, topics, has_room)
        self._share_limits = share_limits
        self.share: dict[str, ShareGroup] = {}

    # Ids of share groups belong to no other kind

    def join(self, ticket: Ticket[Joined], group_id: str, join: Join, now_ms: int) -> GroupDecision:
        if group_id in self.share:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return _respond(ticket, Joined(error=error, member_id=join.member_id))
        return super().join(ticket, group_id, join, now_ms)

    def consumer_heartbeat(
        self,
        ticket: Ticket[ConsumerHeartbeatResult],
        group_id: str,
        heartbeat: ConsumerHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        if group_id in self.share:
            return _respond(
                ticket,
                ConsumerHeartbeatResult(
                    error=ErrorCode.GROUP_ID_NOT_FOUND,
                    message=f"{group_id!r} is a share group",
                    member_id=heartbeat.member_id,
                ),
            )
        return super().consumer_heartbeat(ticket, group_id, heartbeat, now_ms)

    def _check_new(self, group_id: str, error: ErrorCode) -> ErrorCode:
        if group_id in self.share:
            return ErrorCode.GROUP_ID_NOT_FOUND  # its offsets are not committed
        return super()._check_new(group_id, error)

    # Members

    def share_heartbeat(
        self,
        ticket: Ticket[ShareHeartbeatResult],
        group_id: str,
        heartbeat: ShareHeartbeat,
        now_ms: int,
    ) -> GroupDecision:
        """A heartbeat of a share group; the first one makes the group."""
        group = self.share.get(group_id)
        if group is None:
            refused = self._refuse_new(group_id, heartbeat)
            if refused is not None:
                return _respond(ticket, refused)
            group = self._new_share(group_id)
        try:
            result = group.heartbeat(heartbeat, now_ms)
        except ApiError as error:
            result = ShareHeartbeatResult(
                error=error.code, message=str(error), member_id=heartbeat.member_id
            )
        return self._share_decision(group, (ticket.respond(result),))

    def _refuse_new(self, group_id: str, heartbeat: ShareHeartbeat) -> ShareHeartbeatResult | None:
        """The refusal of a heartbeat that would make a group, and may not."""
        error, text = ErrorCode.NONE, ""
        if group_id in self.groups:
            error, text = ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is not a share group"
        elif heartbeat.epoch != JOINING:
            error, text = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}"
        elif not self.has_room():
            error = ErrorCode.POLICY_VIOLATION
            text = "the broker has as many groups as max.groups allows: delete some, or raise it"
        if error is ErrorCode.NONE:
            return None
        return ShareHeartbeatResult(error=error, message=text, member_id=heartbeat.member_id)

    # States of partitions

    def share_states(self, ticket: Ticket[ShareStatesKnown], group_id: str) -> GroupDecision:
        """The partitions that have a state, and those that are to get one."""
        group = self.share.get(group_id)
        if group is None:
            return _respond(ticket, ShareStatesKnown(ErrorCode.GROUP_ID_NOT_FOUND))
        known = group.state_topics
        return _respond(
            ticket,
            ShareStatesKnown(
                ErrorCode.NONE, known.initialized, group.epoch, known.initializing, known.deleting
            ),
        )

    def share_readers(self, ticket: Ticket[list[str]], topic: str, topic_id: Uuid) -> GroupDecision:
        """Share groups that subscribe to a topic, or whose states of it are there or being made."""
        return _respond(
            ticket,
            [
                group_id
                for group_id, group in self.share.items()
                if any(topic in member.topics for member in group.members.values())
                or any(
                    partition.topic_id == topic_id
                    for partition in (
                        *group.state_topics.initialized,
                        *group.state_topics.initializing,
                    )
                )
            ],
        )

    def note_share_initialized(
        self, ticket: Ticket[None], group_id: str, partitions: Partitions, now_ms: int
    ) -> GroupDecision:
        group = self.share.get(group_id)
        if group is None:
            return _respond(ticket, None)
        group.note_initialized(partitions, now_ms)
        return self._share_decision(group, (ticket.respond(None),))

    def begin_share_states(
        self, ticket: Ticket[ShareStatesKnown], group_id: str, partitions: Partitions, now_ms: int
    ) -> GroupDecision:
        """Begin states anew, of a group without members; it is made if it does not exist."""
        group = self.share.get(group_id)
        if group is None:
            if group_id in self.groups:
                return _respond(ticket, ShareStatesKnown(ErrorCode.GROUP_ID_NOT_FOUND))
            if not self.has_room():
                return _respond(ticket, ShareStatesKnown(ErrorCode.POLICY_VIOLATION))
            group = self._new_share(group_id)
        if group.members:
            return _respond(ticket, ShareStatesKnown(ErrorCode.NON_EMPTY_GROUP))
        epoch = group.begin_states(partitions, now_ms)
        known = ShareStatesKnown(ErrorCode.NONE, partitions, epoch)
        return self._share_decision(group, (ticket.respond(known),))

    def begin_share_deletion(
        self,
        ticket: Ticket[ShareStatesKnown | None],
        group_id: str,
        topic_ids: frozenset[Uuid] | None,
        now_ms: int,
    ) -> GroupDecision:
        """The states that are to be deleted, of these topics or of all; None for another group."""
        group = self.share.get(group_id)
        if group is None:
            return _respond(ticket, None)
        if group.members:
            return _respond(ticket, ShareStatesKnown(ErrorCode.NON_EMPTY_GROUP))
        known = group.state_topics
        found = known.initialized | known.initializing
        if topic_ids is None:
            topic_ids = frozenset(p.topic_id for p in found) | known.deleting
        group.begin_deletion(topic_ids, now_ms)
        gone = frozenset(p for p in found if p.topic_id in topic_ids)
        return self._share_decision(
            group, (ticket.respond(ShareStatesKnown(ErrorCode.NONE, gone)),)
        )

    def end_share_deletion(
        self, ticket: Ticket[None], group_id: str, topic_ids: frozenset[Uuid], now_ms: int
    ) -> GroupDecision:
        group = self.share.get(group_id)
        if group is None:
            return _respond(ticket, None)
        group.end_deletion(topic_ids, now_ms)
        return self._share_decision(group, (ticket.respond(None),))

    # Administration

    def list(self, ticket: Ticket[list[ListedGroup]]) -> GroupDecision:
        found = [list_group(group) for group in self.groups.values()]
        found += [
            ListedGroup(group.group_id, SHARE, group.state, GroupType.SHARE)
            for group in self.share.values()
        ]
        return _respond(ticket, found)

    def summaries(self) -> Iterator[GroupSummary]:
        yield from super().summaries()
        for group in self.share.values():
            yield GroupSummary(group.group_id, group.state, len(group.members))

    def describe_share(
        self, ticket: Ticket[ShareGroupDescription | None], group_id: str
    ) -> GroupDecision:
        """The response is None if there is no such share group."""
        group = self.share.get(group_id)
        return _respond(ticket, None if group is None else describe_share_group(group))

    def delete(self, ticket: Ticket[ErrorCode], group_id: str, now_ms: int) -> GroupDecision:
        """Delete a group; the states of a share group's partitions are deleted before."""
        group = self.share.get(group_id)
        if group is None:
            return super().delete(ticket, group_id, now_ms)
        if group.members or group.state_topics.initialized:
            return _respond(ticket, ErrorCode.NON_EMPTY_GROUP)
        records = group.tombstones()
        for record in records:
            self.replay(record, now_ms)
        return Decision(records, (ticket.respond(ErrorCode.NONE),))

    # Time

    def _pass_time_of(self, group_id: str, now_ms: int) -> GroupDecision:
        group = self.share.get(group_id)
        if group is None:
            return super()._pass_time_of(group_id, now_ms)
        group.pass_time(now_ms)
        return self._share_decision(group)

    # Replaying

    def replay(self, record: GroupEvent, now_ms: int) -> None:
        if not isinstance(record, ShareGroupRecord):
            super().replay(record, now_ms)
            return
        group_id = record.group_id
        if isinstance(record, ShareGroupDropped):
            if record.key is ShareKey.EPOCH:
                self.share.pop(group_id, None)
            elif group_id in self.share:
                self.share[group_id].replay(record, now_ms)
            return
        group = self.share.get(group_id)
        if group is None:
            group = self.share[group_id] = self._new_share(group_id)
        group.replay(record, now_ms)

    def end_load(self) -> None:
        super().end_load()
        for group in self.share.values():
            self._deadlines.note(group.group_id, group.next_deadline_ms())

    def _new_share(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, partial(self._share_limits, group_id), self.topics)

    def _share_decision(self, group: ShareGroup, responses: Responses = ()) -> GroupDecision:
        records = group.take_records()
        if records:
            self.share[group.group_id] = group
        if group.group_id in self.share:  # also without a change: its entry may have been taken
            self._deadlines.note(group.group_id, group.next_deadline_ms())
        return Decision(records, responses)


def _respond(ticket: Ticket[A], value: A) -> GroupDecision:
    return Decision(responses=(ticket.respond(value),))
