"""One member of a classic group: joins, stays alive, learns of rebalances, leaves."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.client.assignors import ASSIGNORS
from ottla.client.client import Client
from ottla.client.cluster_view import view_of
from ottla.client.errors import ClientError, Refused, Unreadable, check
from ottla.client.groups import TRANSPORT_PROBLEMS, Membership, commit_offsets
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

# The group goes on without this generation of us: whoever hears one of these has to join again.
GENERATION_OVER: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
_ANSWER_MARGIN_S: Final = 10.0  # an answer may take this much longer than the broker may wait
_PAUSE_S: Final = 0.1  # before joining again, for a coordinator that refuses over and over
_LEAVE_S: Final = 5.0  # so long a goodbye may take; the session ends by itself otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTimes:
    """How long a group waits for a member, and how often the member shows that it is there."""

    session_ms: int = 45_000
    rebalance_ms: int = 60_000
    heartbeat_ms: int = 3_000
    metadata_ms: int = 30_000  # how often a leader looks whether topics have grown


DEFAULT_TIMES: Final = MemberTimes()


@dataclass(frozen=True, slots=True)
class Generation:
    """One's place in one generation of a group, and the partitions that come with it."""

    membership: Membership
    partitions: frozenset[TopicPartition]
    led_counts: Mapping[str, int] | None = None  # what a leader shared out


class GroupMember:
    """Owned by who made it; `join` begins, `leave` ends. Belongs to its client's event loop.

    Partitions are given back as a whole at every rebalance (the eager protocol): when
    `must_rejoin` turns true, commit what was read, then `join` again. Between the two nothing
    may be read. Assignments are made by `ASSIGNORS`, so groups may be shared with other clients
    that know one of these.
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
        self._beating: asyncio.Task[None] | None = None
        self._rejoin = asyncio.Event()
        self._reason: ClientError | None = None
        self._is_joining = False

    @property
    def generation(self) -> Generation | None:
        """What was joined last; None before, and after the membership was lost."""
        return self._generation

    @property
    def must_rejoin(self) -> bool:
        """Whether the group has moved on, or was never joined."""
        return self._generation is None or self._rejoin.is_set()

    @property
    def lost_because(self) -> ClientError | None:
        """Why partitions are gone without having been given back, if they are."""
        return self._reason

    async def wait_rejoin(self, timeout_s: float) -> bool:
        """True once the group has moved on; False if time ran out first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rejoin.wait()
        return self._rejoin.is_set()

    async def join(self) -> Generation:
        """Become a member of the next generation; returns when all its members have come."""
        await self._stop_beating()
        self._generation = None
        self._is_joining = True
        generation = await self._join_next()
        self._is_joining = False
        self._generation = generation
        self._reason = None
        self._rejoin.clear()
        self._beating = asyncio.create_task(self._beat(generation))
        return generation

    async def commit(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        """Remember how far the group has read; False when the group has moved on without us.

        Then nothing is committed, and whoever has the partitions now reads from the last commit.
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
        """Let the group go on without us at once. Who cannot be told will notice by itself."""
        await self._stop_beating()
        member_id, self._member_id, self._generation = self._member_id, "", None
        if not member_id:
            return
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                coordinator = await self.client.coordinator_of(self.group_id)
                if self._is_joining:
                    # A join that was given up still holds back what its connection sends.
                    await self.client.hang_up(coordinator)
                request = LeaveGroupRequest(
                    group_id=self.group_id,
                    member_id=member_id,
                    members=[MemberIdentity(member_id=member_id, reason="the consumer is closing")],
                )
                await self.client.ask_broker(coordinator, request, LeaveGroupResponse)
        self._is_joining = False

    # Joining

    async def _join_next(self) -> Generation:
        """Each try waits for the others; a rebalance that begins meanwhile means another."""
        while True:
            try:
                return await self.client.retry(
                    self._join_and_sync,
                    on=TRANSPORT_PROBLEMS,
                    patience_s=self._times.rebalance_ms / 1000 + self.client.timeout_s,
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
            assignments, counts = await self._share_out(joined)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        answer = await self.client.ask_coordinator(
            self.group_id, request, SyncGroupResponse, timeout_s=self._patience_s
        )
        check(answer.error_code, f"group {self.group_id}")
        partitions = assigned_partitions(answer.assignment)
        if partitions is None:
            raise Unreadable(f"group {self.group_id}: its leader assigns in an unknown format")
        membership = Membership(joined.member_id, joined.generation_id)
        return Generation(membership, frozenset(partitions), counts)

    async def _join(self) -> JoinGroupResponse:
        """Since KIP-394 a new member is first given an id, then joins with it."""
        answer = await self._ask_to_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._ask_to_join()
        check(answer.error_code, f"group {self.group_id}")
        self._member_id = answer.member_id
        return answer

    async def _ask_to_join(self) -> JoinGroupResponse:
        said = subscription_bytes(self.topics)
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._times.session_ms,
            rebalance_timeout_ms=self._times.rebalance_ms,
            member_id=self._member_id,
            protocol_type=CONSUMER,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=said) for name in ASSIGNORS],
        )
        return await self.client.ask_coordinator(
            self.group_id, request, JoinGroupResponse, timeout_s=self._patience_s
        )

    async def _share_out(
        self, joined: JoinGroupResponse
    ) -> tuple[list[SyncGroupRequestAssignment], Mapping[str, int]]:
        """What the leader brings: everybody's assignment, and the partitions it knew of."""
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
        """Partitions of each topic; none of one that does not exist, which may still come."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        view = view_of(await self.client.ask_any(request, MetadataResponse))
        return {
            name: len(view.topics[name].partitions) if name in view.topics else 0 for name in topics
        }

    @property
    def _patience_s(self) -> float:
        return self._times.rebalance_ms / 1000 + _ANSWER_MARGIN_S

    # Staying

    async def _beat(self, generation: Generation) -> None:
        """Until the group moves on, or has not heard from us for a session."""
        loop = asyncio.get_running_loop()
        look_s = loop.time() + self._times.metadata_ms / 1000
        while True:
            await asyncio.sleep(self._times.heartbeat_ms / 1000)
            try:
                await self.client.retry(
                    lambda: self._heartbeat(generation.membership),
                    on=TRANSPORT_PROBLEMS,
                    patience_s=self._times.session_ms / 1000,
                )
                if loop.time() >= look_s:
                    look_s = loop.time() + self._times.metadata_ms / 1000
                    if await self._have_topics_grown(generation):
                        self._rejoin.set()
                        return
            except ClientError as problem:
                self._note_over(problem)
                return

    async def _have_topics_grown(self, generation: Generation) -> bool:
        """Whether a leader would share out other partitions now; the rest leave that to it."""
        shared_out = generation.led_counts
        return shared_out is not None and (
            await self._partition_counts(list(shared_out)) != shared_out
        )

    async def _heartbeat(self, membership: Membership) -> None:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
        )
        answer = await self.client.ask_coordinator(self.group_id, request, HeartbeatResponse)
        check(answer.error_code, f"group {self.group_id}")

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])

    def _note_over(self, problem: ClientError) -> None:
        """Join again. All but an ordinary rebalance means that our partitions are others' now."""
        if not (isinstance(problem, Refused) and problem.code is ErrorCode.REBALANCE_IN_PROGRESS):
            self._reason = problem
            self._generation = None
        if isinstance(problem, Refused):
            self._forget_id(problem)
        self._rejoin.set()

    def _forget_id(self, problem: Refused) -> None:
        if problem.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
