"""Whatever members, topics, time and crashes do, no partition has two owners, and all are owned.

Members of both protocols share a group, lose answers, are slow to let go, restart under another
id, and change what they subscribe to; the group may change its protocol meanwhile. Every record is
written to bytes, read again and replayed elsewhere, and that other coordinator must know the same.
"""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes import group_members
from fakes.tickets import FakeTicket, responses, written
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState, ReplayedGroup
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.consumer_records import EpochSet, MemberState
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.records import GroupDecision, Record, from_bytes, to_bytes
from ottla.coordinator.groups.topics import IdPartition, of_names, to_names, topics_fingerprint
from ottla.errors import ErrorCode
from ottla.protocol.consumer_protocol import parse_assignment
from sizes import examples

GROUP = "g"
SESSION_MS, REBALANCE_MS = 10_000, 4000
NAMES = "abstxy"  # s and t are static, x and y speak the older protocol
TOPICS = ("one", "two", "three")
FENCED = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}

clients = st.sampled_from(NAMES)
newer = st.sampled_from("abst")
older = st.sampled_from("xy")
wishes = st.one_of(
    st.frozensets(st.sampled_from(TOPICS), min_size=1).map(lambda names: (names, "")),
    st.sampled_from([(frozenset[str](), "t.*"), (frozenset({"one"}), "(one|three)")]),
)


class Client:
    """What a client knows, and which partitions it reads: a set that only it makes smaller."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_older = name in "xy"
        self.instance_id = f"static-{name}" if name in "st" else None
        self.lives = 0
        self.wish: tuple[frozenset[str], str] = (frozenset({"one"}), "")
        self.forget()

    def forget(self) -> None:
        """It starts anew, under another id."""
        self.lives += 1
        self.member_id = "" if self.is_older else f"{self.name}{self.lives}"
        self.epoch = 0
        self.is_joined = False
        self.told: frozenset[IdPartition] = frozenset()
        self.owned: frozenset[IdPartition] = frozenset()
        self.leads: tuple[str, ...] = ()


class GroupsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.numbers = count(1)
        self.catalog = TopicCatalog(one=3, two=2)
        self.clients = {name: Client(name) for name in NAMES}
        self.tickets = map(FakeTicket, count(1))
        self.open: dict[int, Client] = {}
        self.limits = ConsumerLimits()
        self.groups = self.new_groups()
        self.shadow = self.new_groups()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.epoch_seen = 0

    @initialize(
        migrates=st.booleans(), assignor=st.sampled_from(["uniform", "range"]), full=st.booleans()
    )
    def begin(self, migrates: bool, assignor: str, full: bool) -> None:
        self.limits = ConsumerLimits(
            session_timeout_ms=SESSION_MS,
            members_max=3 if full else 100,
            assignors=(assignor,),
            allows_upgrade=migrates,
            allows_downgrade=migrates,
            classic=GroupLimits(initial_delay_ms=0),
        )

    def new_groups(self) -> Groups:
        return Groups(
            lambda: GroupLimits(initial_delay_ms=0),
            lambda: str(next(self.numbers)),
            consumer_limits=lambda group_id: self.limits,
            topics=lambda: self.catalog.image,
        )

    # What can happen

    @rule(
        name=newer, says_owned=st.booleans(), is_lost=st.sampled_from([False, False, False, True])
    )
    def beat(self, name: str, says_owned: bool, is_lost: bool) -> None:
        client = self.clients[name]
        beat = self.full_beat(client)
        if client.is_joined:
            owned = client.owned if says_owned else None
            beat = ConsumerHeartbeat(
                member_id=client.member_id,
                epoch=client.epoch,
                instance_id=client.instance_id,
                owned=owned,
            )
        self.send(client, beat, is_lost=is_lost)

    @rule(name=newer, wish=wishes)
    def subscribe(self, name: str, wish: tuple[frozenset[str], str]) -> None:
        client = self.clients[name]
        client.wish = wish
        self.send(client, self.full_beat(client), is_lost=False)

    @rule(name=newer)
    def let_go(self, name: str) -> None:
        client = self.clients[name]
        client.owned &= client.told

    @rule(name=newer)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        beat = ConsumerHeartbeat(
            member_id=client.member_id, epoch=-1, instance_id=client.instance_id
        )
        client.forget()
        self.send(client, beat, is_lost=True)

    @rule(name=st.sampled_from("st"))
    def leave_for_a_while(self, name: str) -> None:
        client = self.clients[name]
        beat = ConsumerHeartbeat(
            member_id=client.member_id, epoch=-2, instance_id=client.instance_id
        )
        client.forget()
        self.send(client, beat, is_lost=True)

    @rule(name=clients)
    def restart(self, name: str) -> None:
        """It was killed: nobody hears of it but by its silence."""
        self.clients[name].forget()

    @rule(name=older, topic=st.sampled_from(TOPICS))
    def join(self, name: str, topic: str) -> None:
        """It has let go of everything before, as eager clients do."""
        client = self.clients[name]
        if client in self.open.values():
            return
        client.owned, client.is_joined = frozenset(), False
        client.wish = (frozenset({topic}), "")
        self.send_join(client)

    def send_join(self, client: Client) -> None:
        request = group_members.join(
            client.member_id,
            client_id=client.name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocols={"range": group_members.subscription(*sorted(client.wish[0]))},
            version=9,
        )
        self.take(self.groups.join(self.ticket(client), GROUP, request, self.now_ms))

    @rule(name=older)
    def go_on(self, name: str) -> None:
        """What a good client does next: heartbeat, and join again if it is told to."""
        client = self.clients[name]
        if not client.is_joined or client in self.open.values():
            return
        decision = self.groups.heartbeat(
            FakeTicket(0), GROUP, client.member_id, None, client.epoch, self.now_ms
        )
        ((_, error),) = decision.responses
        assert isinstance(error, ErrorCode)
        if error is not ErrorCode.NONE:
            client.owned = frozenset()
            self.note_error(client, error)
            self.send_join(client)

    @rule(name=older)
    def leave_older(self, name: str) -> None:
        client = self.clients[name]
        member_id = client.member_id
        self.open = {t: c for t, c in self.open.items() if c is not client}
        client.forget()
        self.take(self.groups.leave(FakeTicket(0), GROUP, [(member_id, None)], self.now_ms))

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 5))
    def change_topic(self, name: str, partitions: int) -> None:
        known = self.catalog.image.topics.get(name)
        if known is None:
            self.catalog.create(name, partitions)
        elif len(known.partitions) < partitions:
            self.catalog.grow(name, partitions)
        else:
            self.catalog.delete(name)

    @rule(passed_ms=st.sampled_from([1, 1000, 3999, 4000, 9999, 10_000]))
    def wait(self, passed_ms: int) -> None:
        end_ms = self.now_ms + passed_ms
        while (due_ms := self.groups.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.groups.pass_time(self.now_ms))
            next_ms = self.groups.next_deadline_ms()
            assert next_ms is None or next_ms > self.now_ms, "a deadline passed without effect"
        self.now_ms = end_ms

    @rule()
    def crash(self) -> None:
        """The coordinator dies; another reads what was written down."""
        self.groups = self.new_groups()
        for key, value in self.log:
            record = from_bytes(key, value)
            assert record is not None
            self.groups.replay(record, self.now_ms)
        self.groups.end_load()
        for client in self.open.values():
            client.is_joined, client.owned = False, frozenset()
        self.open.clear()
        self.compare()

    @rule()
    def settle(self) -> None:
        """If everybody behaves, the group is stable after a few rounds."""
        for _ in range(30):
            for client in self.clients.values():
                client.owned &= client.told
                if client.is_older and client.is_joined:
                    self.go_on(client.name)
                elif client.is_joined:
                    self.beat(client.name, says_owned=True, is_lost=False)
            self.now_ms += 500
            self.take(self.groups.pass_time(self.now_ms))
        group = self.groups.groups.get(GROUP)
        if isinstance(group, ConsumerGroup) and group.members:
            joined = {c.member_id for c in self.clients.values() if c.is_joined}
            assert group.replayed.state is ConsumerGroupState.STABLE, group.replayed
            assert group.members.keys() == joined

    # What is always true

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        """Of those who are members: the others will hear that they are not."""
        group = self.groups.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        owned = [
            partition
            for client in self.clients.values()
            if client.is_joined and client.member_id in group.members
            for partition in client.owned
        ]
        assert len(owned) == len(set(owned)), owned

    @invariant()
    def a_stable_group_reads_everything(self) -> None:
        group = self.groups.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup) or group.state is not ConsumerGroupState.STABLE:
            return
        names = group.subscribed_topics()
        if topics_fingerprint(names, self.catalog.image) == group.replayed.fingerprint:
            assert group.replayed.owners.keys() == self.catalog.all_of(*names)

    @invariant()
    def members_fit(self) -> None:
        group = self.groups.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            assert len(group.members) <= self.limits.members_max
            places = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
            assert places == group.replayed.static

    # Consequences

    def full_beat(self, client: Client) -> ConsumerHeartbeat:
        topics, pattern = client.wish
        return ConsumerHeartbeat(
            member_id=client.member_id,
            epoch=client.epoch if client.is_joined else 0,
            instance_id=client.instance_id,
            rebalance_timeout_ms=REBALANCE_MS,
            topics=topics,
            pattern=pattern,
            owned=client.owned if client.is_joined else frozenset(),
        )

    def send(self, client: Client, beat: ConsumerHeartbeat, *, is_lost: bool) -> None:
        if beat.epoch == 0:
            client.owned = frozenset()
        decision = self.groups.consumer_heartbeat(FakeTicket(0), GROUP, beat, self.now_ms)
        answer = next(answer for ticket, answer in responses(decision) if ticket == 0)
        assert isinstance(answer, ConsumerHeartbeatResult)
        self.take(decision)
        if not is_lost:
            self.note_beat(client, beat, answer)

    def note_beat(
        self, client: Client, beat: ConsumerHeartbeat, answer: ConsumerHeartbeatResult
    ) -> None:
        if answer.error is not ErrorCode.NONE:
            self.note_error(client, answer.error)
            return
        assert answer.epoch >= beat.epoch, "an epoch that was before"
        client.is_joined, client.epoch = True, answer.epoch
        if answer.assigned is not None:
            client.told = answer.assigned
            client.owned |= answer.assigned

    def note_error(self, client: Client, error: ErrorCode) -> None:
        if error in FENCED:
            client.forget()

    def ticket(self, client: Client) -> FakeTicket:
        ticket = next(self.tickets)
        self.open[ticket] = client
        return ticket

    def take(self, decision: GroupDecision) -> None:
        for record in written(decision):
            self.write(record)
        if decision.records:
            self.compare()
        for ticket, answer in responses(decision):
            client = self.open.pop(ticket, None)
            if client is not None and isinstance(answer, Joined):
                self.note_joined(client, answer)

    def note_joined(self, client: Client, joined: Joined) -> None:
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = joined.member_id
            self.send_join(client)
        elif joined.error is not ErrorCode.NONE:
            self.note_error(client, joined.error)
        else:
            client.is_joined, client.epoch = True, joined.generation
            client.member_id = joined.member_id
            client.leads = tuple(member_id for member_id, _, _ in joined.members)
            self.send_sync(client)

    def send_sync(self, client: Client) -> None:
        """A leader, when the group is classic, gives everything to itself."""
        assignments = {}
        if client.leads:
            mine = to_names(self.catalog.all_of(*client.wish[0]), self.catalog.image)
            assignments[client.member_id] = group_members.assignment(mine)
        ticket = next(self.tickets)
        sync = group_members.sync(client.member_id, client.epoch, assignments)
        decision = self.groups.sync(ticket, GROUP, sync, self.now_ms)
        for found, answer in decision.responses:
            if found == ticket and isinstance(answer, Synced):
                named = parse_assignment(answer.assignment)
                if answer.error is ErrorCode.NONE and named is not None:
                    client.owned = client.told = of_names(named, self.catalog.image)
        self.take(
            decision._replace(responses=tuple(a for a in decision.responses if a[0] != ticket))
        )

    # Replaying

    def write(self, record: Record) -> None:
        """One record boundary: what a coordinator that stops reading here would know is sound."""
        written = to_bytes(record)
        self.log.append(written)
        again = from_bytes(*written)
        assert again == record
        self.shadow.replay(again, self.now_ms)
        if isinstance(record, EpochSet):
            assert record.epoch >= self.epoch_seen
            self.epoch_seen = record.epoch
        group = self.shadow.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            check_ownership(group.replayed)

    def compare(self) -> None:
        live, other = self.groups.groups.get(GROUP), self.shadow.groups.get(GROUP)
        if isinstance(live, ConsumerGroup):
            assert isinstance(other, ConsumerGroup)
            assert live.replayed == other.replayed
        elif isinstance(live, ClassicGroup) and live.is_stored:
            assert isinstance(other, ClassicGroup)
            if live.state in {State.STABLE, State.EMPTY}:
                assert live.stored() == other.stored()


def check_ownership(written: ReplayedGroup) -> None:
    held = [p for c in written.currents.values() for p in c.assigned | c.revoking]
    assert len(held) == len(set(held)), "two members have the same partition"
    assert set(held) == written.owners.keys()
    for current in written.currents.values():
        assert not current.assigned & current.revoking
        assert bool(current.revoking) <= (current.state is MemberState.UNREVOKED)


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=examples(150), stateful_step_count=50)
