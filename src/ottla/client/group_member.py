"""A member of a classic group: joins, sends heartbeats, detects rebalances, leaves."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.client.assignors import ASSIGNORS
from ottla.client.client import Client
from ottla.client.cluster_view import view_of
from ottla.client.errors import TRANSPORT_ERRORS, ClientError, Refused, Unreadable, check
from ottla.client.group_offsets import Membership, commit_offsets
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.consumer_protocol import (
    CONSUMER,
    assigned_partitions,
    partitions_bytes,
    subscribed_topics,
    subscription_bytes,
)
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

# The member's generation has ended: it has to join again.
GENERATION_OVER: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
_RESPONSE_MARGIN_S: Final = 10.0  # how much longer a response may take than the broker may wait
_PAUSE_S: Final = 0.1  # before joining again, for a coordinator that refuses over and over
_LEAVE_S: Final = 5.0  # timeout of LeaveGroup; otherwise the session ends by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTimes:
    """Session and rebalance timeouts of a member, and its intervals."""

    session_ms: int = 45_000
    rebalance_ms: int = 60_000
    heartbeat_ms: int = 3_000
    metadata_ms: int = 30_000  # how often a leader checks whether topics have grown


DEFAULT_TIMES: Final = MemberTimes()


@dataclass(frozen=True, slots=True)
class Generation:
    """A membership in one generation of a group, and its assigned partitions."""

    membership: Membership
    partitions: frozenset[TopicPartition]
    led_counts: Mapping[str, int] | None = None  # partition counts that a leader assigned


class GroupMember:
    """A member of a classic group, owned by its creator, on its client's event loop.

    All partitions are revoked at every rebalance (the eager protocol): when `must_rejoin` turns
    true, commit what was read, then `join` again. Between the two, read nothing. Assignments are
    made by `ASSIGNORS`, so groups may be shared with other clients that support one of these.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        topics: Iterable[str],
        times: MemberTimes = DEFAULT_TIMES,
    ) -> None:
        self.client = client
        self.group_id = group_id
        self.topics = frozenset(topics)
        self._times = times
        self._member_id = ""
        self._generation: Generation | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._rejoin = asyncio.Event()
        self._reason: ClientError | None = None
        self._is_joining = False

    @property
    def generation(self) -> Generation | None:
        """The current generation; None before the first, and after the membership was lost."""
        return self._generation

    @property
    def must_rejoin(self) -> bool:
        """True if the generation has ended, or the group was never joined."""
        return self._generation is None or self._rejoin.is_set()

    @property
    def lost_because(self) -> ClientError | None:
        """The reason for which partitions were lost instead of revoked, if they were."""
        return self._reason

    async def wait_rejoin(self, timeout_s: float) -> bool:
        """True once the generation has ended; False if time ran out first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rejoin.wait()
        return self._rejoin.is_set()

    async def join(self) -> Generation:
        """Join the next generation; returns when all its members have joined."""
        await self._stop_heartbeats()
        self._generation = None
        self._is_joining = True
        generation = await self._join_next()
        self._is_joining = False
        self._generation = generation
        self._reason = None
        self._rejoin.clear()
        self._heartbeats = asyncio.create_task(self._send_heartbeats(generation))
        return generation

    async def commit(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        """Commit offsets; False if the generation has ended.

        Then nothing is committed, and the new owners of the partitions read from the last commit.
        """
        if self._generation is None:
            return False
        try:
            await commit_offsets(self.client, self.group_id, offsets, self._generation.membership)
        except Refused as problem:
            if problem.code not in GENERATION_OVER:
                raise
            self._note_over(problem)
            return False
        return True

    async def leave(self) -> None:
        """Leave the group; after an error its session expires by itself."""
        await self._stop_heartbeats()
        member_id, self._member_id, self._generation = self._member_id, "", None
        if not member_id:
            return
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                coordinator = await self.client.coordinator_of(self.group_id)
                if self._is_joining:
                    # A cancelled JoinGroup still blocks later requests on its connection.
                    await self.client.disconnect(coordinator)
                request = LeaveGroupRequest(
                    group_id=self.group_id,
                    member_id=member_id,
                    members=[MemberIdentity(member_id=member_id, reason="the consumer is closing")],
                )
                await self.client.send_to_broker(coordinator, request, LeaveGroupResponse)
        self._is_joining = False

    # Joining

    async def _join_next(self) -> Generation:
        """Join until a generation is stable; a rebalance in between means another attempt."""
        while True:
            try:
                return await self.client.retry(
                    self._join_and_sync,
                    on=TRANSPORT_ERRORS,
                    timeout_s=self._times.rebalance_ms / 1000 + self.client.timeout_s,
                )
            except Refused as problem:
                if problem.code not in GENERATION_OVER:
                    raise
                self._forget_id(problem)
            await asyncio.sleep(_PAUSE_S)

    async def _join_and_sync(self) -> Generation:
        joined = await self._join()
        assignments, counts = list[SyncGroupRequestAssignment](), None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments, counts = await self._assign(joined)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        response = await self.client.send_to_coordinator(
            self.group_id, request, SyncGroupResponse, timeout_s=self._rebalance_timeout_s
        )
        check(response.error_code, f"group {self.group_id}")
        partitions = assigned_partitions(response.assignment)
        if partitions is None:
            raise Unreadable(
                f"group {self.group_id}: the leader's assignment has an unknown format"
            )
        membership = Membership(joined.member_id, joined.generation_id)
        return Generation(membership, frozenset(partitions), counts)

    async def _join(self) -> JoinGroupResponse:
        """Join; since KIP-394 a new member first gets an id, then joins with it."""
        response = await self._send_join()
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            response = await self._send_join()
        check(response.error_code, f"group {self.group_id}")
        self._member_id = response.member_id
        return response

    async def _send_join(self) -> JoinGroupResponse:
        metadata = subscription_bytes(self.topics)
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._times.session_ms,
            rebalance_timeout_ms=self._times.rebalance_ms,
            member_id=self._member_id,
            protocol_type=CONSUMER,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata) for name in ASSIGNORS
            ],
        )
        return await self.client.send_to_coordinator(
            self.group_id, request, JoinGroupResponse, timeout_s=self._rebalance_timeout_s
        )

    async def _assign(
        self, joined: JoinGroupResponse
    ) -> tuple[list[SyncGroupRequestAssignment], Mapping[str, int]]:
        """As leader: the assignments of all members, and the partition counts they are based on."""
        wanted = {
            member.member_id: subscribed_topics(member.metadata) or frozenset[str]()
            for member in joined.members
        }
        counts = await self._partition_counts(sorted(frozenset[str]().union(*wanted.values())))
        assigned = ASSIGNORS[joined.protocol_name or ""](wanted, counts)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=partitions_bytes(tps))
            for member, tps in assigned.items()
        ], counts

    async def _partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """The number of partitions of each topic; 0 for one that does not exist yet."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        view = view_of(await self.client.send_to_any(request, MetadataResponse))
        return {
            name: len(view.topics[name].partitions) if name in view.topics else 0 for name in topics
        }

    @property
    def _rebalance_timeout_s(self) -> float:
        return self._times.rebalance_ms / 1000 + _RESPONSE_MARGIN_S

    # Heartbeats

    async def _send_heartbeats(self, generation: Generation) -> None:
        """Send heartbeats until the generation ends, or none has succeeded for a session."""
        loop = asyncio.get_running_loop()
        next_check_s = loop.time() + self._times.metadata_ms / 1000
        while True:
            await asyncio.sleep(self._times.heartbeat_ms / 1000)
            try:
                await self.client.retry(
                    lambda: self._heartbeat(generation.membership),
                    on=TRANSPORT_ERRORS,
                    timeout_s=self._times.session_ms / 1000,
                )
                if loop.time() >= next_check_s:
                    next_check_s = loop.time() + self._times.metadata_ms / 1000
                    if await self._have_topics_grown(generation):
                        self._rejoin.set()
                        return
            except ClientError as problem:
                self._note_over(problem)
                return

    async def _have_topics_grown(self, generation: Generation) -> bool:
        """True if this member is the leader and its topics have other partitions now."""
        assigned = generation.led_counts
        return assigned is not None and await self._partition_counts(list(assigned)) != assigned

    async def _heartbeat(self, membership: Membership) -> None:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
        )
        response = await self.client.send_to_coordinator(self.group_id, request, HeartbeatResponse)
        check(response.error_code, f"group {self.group_id}")

    async def _stop_heartbeats(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.cancel()
            await asyncio.wait([heartbeats])

    def _note_over(self, problem: ClientError) -> None:
        """Note that the generation has ended; unless by a rebalance, the partitions are lost."""
        if not (isinstance(problem, Refused) and problem.code is ErrorCode.REBALANCE_IN_PROGRESS):
            self._reason = problem
            self._generation = None
        if isinstance(problem, Refused):
            self._forget_id(problem)
        self._rejoin.set()

    def _forget_id(self, problem: Refused) -> None:
        if problem.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
