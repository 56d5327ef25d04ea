"""Whatever members, administrators, time and crashes do to a group, some things stay true."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fakes import group_members
from fakes.tickets import FakeTicket, responses
from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.records import GroupDecision, GroupStored, from_bytes, to_bytes
from ottla.errors import ErrorCode
from sizes import examples

DELAY_MS, SESSION_MS, REBALANCE_MS = 3000, 10_000, 20_000
# Every request that waits has its response within this time: a join when its rebalance ends, a
# sync when the leader is removed.
RESPONSE_MS = REBALANCE_MS + SESSION_MS

NAMES = "abcst"  # s and t are static members
clients = st.sampled_from(NAMES)
protocols = st.sampled_from(
    [("range",), ("range", "sticky"), ("sticky", "range"), ("own", "range")]
)


class Client:
    """What a client knows of its membership."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance_id = f"static-{name}" if name in "st" else None
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: tuple[str, ...] = ()
        self.protocols: tuple[str, ...] = ("range",)
        self.is_waiting = False
        self.is_synced = False


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.ids = count(1)
        self.tickets = map(FakeTicket, count(1))
        self.open: dict[int, tuple[Client, str, int]] = {}  # ticket to who, what and since when
        self.syncing: dict[int, str] = {}  # ticket to the member that syncs
        self.clients = {name: Client(name) for name in NAMES}
        self.limits = GroupLimits(initial_delay_ms=0, members_max=4)
        self.group = ClassicGroup("g", lambda: self.limits, lambda: str(next(self.ids)))
        self.written: GroupStored | None = None
        self.generation_seen = 0
        self.state_seen = State.EMPTY

    @initialize(delay_ms=st.sampled_from([0, 0, DELAY_MS]))
    def begin(self, delay_ms: int) -> None:
        self.limits = GroupLimits(initial_delay_ms=delay_ms, members_max=4)

    # What can happen

    @rule(names=st.lists(clients, min_size=1, unique=True), rounds=st.integers(1, 4))
    def behave(self, names: list[str], rounds: int) -> None:
        """Some of those who are in the group, or coming, do what good clients do next."""
        for _ in range(rounds):
            for name in names:
                client = self.clients[name]
                if client.is_waiting or not client.member_id:
                    continue
                if client.generation >= 0 and not client.is_synced:
                    self.sync(name)
                elif client.generation < 0 or self.beat(client) is not ErrorCode.NONE:
                    self.join(name, client.protocols, 9, forgets=False)

    @rule(
        name=clients,
        names=protocols,
        version=st.sampled_from([3, 3, 8, 9]),
        forgets=st.sampled_from([False, False, True]),
    )
    def join(self, name: str, names: tuple[str, ...], version: int, forgets: bool) -> None:
        client = self.clients[name]
        client.protocols = names
        if forgets:
            client.member_id = ""
        request = group_members.join(
            client.member_id,
            instance_id=client.instance_id,
            client_id=name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocols={protocol: group_members.subscription("t") for protocol in names},
            version=version,
        )
        self.take(self.group.join(self.ticket(client, "join"), request, self.now_ms))

    @rule(name=clients)
    def sync(self, name: str) -> None:
        client = self.clients[name]
        assignments = {}
        if client.leads:
            # One member gets nothing, not even a word: it must not keep what it had.
            assignments = {m: f"{client.generation}:{m}".encode() for m in client.members}
            del assignments[client.members[client.generation % len(client.members)]]
        request = group_members.sync(
            client.member_id, client.generation, assignments, instance_id=client.instance_id
        )
        ticket = self.ticket(client, "sync")
        self.syncing[ticket] = client.member_id
        self.take(self.group.sync(ticket, request, self.now_ms))

    @rule(name=clients)
    def heartbeat(self, name: str) -> None:
        self.beat(self.clients[name])

    def beat(self, client: Client) -> ErrorCode:
        error = self.group.heartbeat(
            client.member_id, client.instance_id, client.generation, self.now_ms
        )
        self.note_error(client, error)
        return error

    @rule(names=st.lists(clients, min_size=1, max_size=3))
    def leave(self, names: list[str]) -> None:
        identities = [(self.clients[n].member_id, self.clients[n].instance_id) for n in names]
        errors, decision = self.group.leave(identities, self.now_ms)
        assert len(errors) == len(names)
        self.take(decision)

    @rule(passed_ms=st.sampled_from([1, 1000, 2999, 3000, 9999, 10_000, 20_000]))
    def wait(self, passed_ms: int) -> None:
        end_ms = self.now_ms + passed_ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            before = (due_ms, self.now_ms)
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.pass_time(self.now_ms))
            next_ms = self.group.next_deadline_ms()
            assert next_ms is None or (next_ms, self.now_ms) != before, "time stands still"
            assert next_ms is None or next_ms > self.now_ms, "a deadline passed without effect"
        self.now_ms = end_ms

    @precondition(lambda self: self.written is not None)
    @rule()
    def crash(self) -> None:
        assert self.written is not None
        self.group = ClassicGroup.restore(
            self.written, lambda: self.limits, lambda: str(next(self.ids)), self.now_ms
        )
        self.generation_seen, self.state_seen = self.group.generation, self.group.state
        self.open.clear()
        for client in self.clients.values():
            client.is_waiting = False
            if client.generation > self.written.generation:
                client.generation = -1  # what it joined was never written down

    # What is always true

    @invariant()
    def one_leader_and_it_is_a_member(self) -> None:
        group = self.group
        if group.members:
            assert group.leader in group.members
        if group.state in {State.COMPLETING, State.STABLE}:
            assert group.members
            assert group.protocol is not None

    @invariant()
    def generations_only_rise(self) -> None:
        assert self.group.generation >= self.generation_seen

    @invariant()
    def static_places_are_held_by_members(self) -> None:
        group = self.group
        held = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert held == group.membership.static
        assert len(group.members) <= self.limits.members_max

    @invariant()
    def whoever_waits_is_waited_for_by_its_member_alone(self) -> None:
        members = self.group.members.values()
        held = [t for m in members for t in (m.join_ticket, m.sync_ticket) if t is not None]
        tickets = [ticket for ticket in held if isinstance(ticket, FakeTicket)]
        assert len(tickets) == len(held)
        assert sorted(tickets) == sorted(self.open), "every open ticket is held by one member"

    @invariant()
    def nobody_waits_for_what_is_over(self) -> None:
        for member in self.group.members.values():
            assert member.join_ticket is None or self.group.state is State.PREPARING
            assert member.sync_ticket is None or self.group.state is State.COMPLETING

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        for client, verb, since_ms in self.open.values():
            assert self.now_ms - since_ms <= RESPONSE_MS, (client.name, verb)

    @invariant()
    def restoring_the_last_record_gives_the_group(self) -> None:
        """In the states in which a group is stored, equal in everything that is stored.

        Not stored are: when sessions end, ids that were given out, and the metadata of protocols
        that were not elected.
        """
        if self.group.state not in {State.STABLE, State.EMPTY} or self.written is None:
            return
        assert self.group.stored() == self.written
        again = from_bytes(*to_bytes(self.written))
        assert isinstance(again, GroupStored)
        restored = ClassicGroup.restore(again, lambda: self.limits, lambda: "", self.now_ms)
        assert restored.stored() == self.written
        assert stored_parts(restored) == stored_parts(self.group)

    @invariant()
    def a_rebalance_under_way_does_not_change_what_is_stored(self) -> None:
        """The next coordinator finds the last generation that was stable, or empty."""
        if self.written is not None:
            restored = ClassicGroup.restore(
                self.written, lambda: self.limits, lambda: "", self.now_ms
            )
            assert restored.generation <= self.group.generation
            assert restored.state is (State.STABLE if self.written.members else State.EMPTY)

    # Consequences

    def ticket(self, client: Client, verb: str) -> FakeTicket:
        ticket = next(self.tickets)
        self.open[ticket] = (client, verb, self.now_ms)
        client.is_waiting = True
        return ticket

    def take(self, decision: GroupDecision) -> None:
        if self.group.state is State.COMPLETING and self.state_seen is not State.COMPLETING:
            assert self.group.generation > self.generation_seen, "the same generation twice"
        self.state_seen, self.generation_seen = self.group.state, self.group.generation
        for record in decision.records:
            assert isinstance(record, GroupStored)
            assert self.written is None or record.generation >= self.written.generation
            self.written = record
        for ticket, answer in responses(decision):
            client, verb, _ = self.open.pop(ticket)  # a second answer would not be found
            client.is_waiting = any(other is client for other, _, _ in self.open.values())
            if isinstance(answer, Joined):
                assert verb == "join"
                self.note_joined(client, answer)
            else:
                assert verb == "sync"
                assert isinstance(answer, Synced)
                self.note_synced(client, self.syncing[ticket], answer)

    def note_joined(self, client: Client, joined: Joined) -> None:
        if joined.error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            client.member_id = joined.member_id
        if joined.error is not ErrorCode.NONE:
            self.note_error(client, joined.error)
            return
        if joined.generation != client.generation:
            client.is_synced = False
        assert joined.generation >= client.generation, "a generation that was before"
        client.generation = joined.generation
        client.leads = bool(joined.members)
        client.members = tuple(member_id for member_id, _, _ in joined.members)
        assert joined.protocol is not None

    def note_synced(self, client: Client, member_id: str, synced: Synced) -> None:
        if synced.error is not ErrorCode.NONE:
            self.note_error(client, synced.error)
            return
        client.is_synced = True
        if synced.assignment:
            generation, _, owner = synced.assignment.decode().partition(":")
            assert int(generation) == self.group.generation, "an assignment of another generation"
            assert owner == member_id or client.instance_id is not None, "somebody else's"

    def note_error(self, client: Client, error: ErrorCode) -> None:
        if error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            client.member_id, client.generation, client.is_synced = "", -1, False
        elif error is ErrorCode.ILLEGAL_GENERATION:
            client.generation, client.is_synced = -1, False


def stored_parts(group: ClassicGroup) -> dict[str, object]:
    """The attributes of a group, and of its members, that a record keeps."""
    return {
        "group": (group.group_id, group.state, group.generation, group.changed_ms),
        "protocol": (group.protocol_type, group.protocol, group.leader),
        "static": group.membership.static,
        "members": [
            (
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.metadata(group.protocol),
                member.assignment,
            )
            for member_id, member in group.members.items()
        ],
    }


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=examples(200), stateful_step_count=50)
