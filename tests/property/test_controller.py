"""Whatever is asked of the cluster and whoever dies: these things stay true."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes.cluster_images import broker as broker_image
from ottla.cluster.commits import writes
from ottla.cluster.controller import brokers, configs, leaders, reassignment, topics
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import NewTopic
from ottla.cluster.image import ClusterImage
from ottla.cluster.layout import read_changes, read_image
from ottla.cluster.placement import place
from ottla.cluster.store import ChangeBatch, Entry, KeyChange, Put, Revision, Snapshot
from ottla.cluster.values import Change, PartitionImage, broker_key, ready_key
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.model import BrokerId, TopicPartition, Uuid
from sizes import examples

BROKER_IDS = st.integers(1, 4).map(BrokerId)
NAMES = st.sampled_from(["a", "a.b", "a_b", "orders"])
UNCLEAN = "unclean.leader.election.enable"
CONFIGS = st.sampled_from(
    [
        {},
        {UNCLEAN: "true"},
        {"min.insync.replicas": "2"},
        {"min.insync.replicas": "3", UNCLEAN: "true"},
    ]
)
CONFIG = BrokerConfig(partitions_max=12)
COUNTS = st.integers(-2, 5)
STARTS = st.integers(0, 2**16)


class ClusterMachine(RuleBasedStateMachine):
    """Random wishes and deaths, each one applied as the store would hand it back."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self.entries: dict[str, Entry] = {}
        self.ids_given = 0
        self.ids_seen: dict[Uuid, str] = {}
        self.seen: dict[tuple[Uuid, int], PartitionImage] = {}

    def new_id(self) -> Uuid:
        self.ids_given += 1
        return Uuid(self.ids_given.to_bytes(16, "big"))

    def attempt(self, decide: Callable[[ClusterImage], Decision[Any]]) -> None:
        """A refusal is as good as a decision, but it is always one the protocol knows."""
        with contextlib.suppress(ApiError):
            self.write(decide(self.image).changes)

    def write(self, changes: tuple[Change, ...]) -> None:
        if not changes:
            return
        revision = Revision(self.image.revision + 1)
        told = []
        for write in writes(changes, {}):
            value = write.value if isinstance(write, Put) else None
            told.append(KeyChange(write.key, value))
            if value is None:
                self.entries.pop(write.key, None)
            else:
                self.entries[write.key] = Entry(write.key, value, revision)
        batch = ChangeBatch(revision, tuple(told))
        self.image = self.image.apply(read_changes(batch), revision)

    @rule(
        name=NAMES,
        count=st.integers(-2, 5),
        factor=st.integers(-2, 5),
        start=STARTS,
        config=CONFIGS,
    )
    def create(
        self, name: str, count: int, factor: int, start: int, config: dict[str, str | None]
    ) -> None:
        wanted = NewTopic(
            name=name, partition_count=count, replication_factor=factor, config=config
        )
        self.attempt(
            lambda image: topics.create_topic(
                image, wanted, CONFIG, topic_id=self.new_id(), start=start
            )
        )

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.attempt(lambda image: topics.delete_topic(image, name, CONFIG))

    @rule(name=NAMES, total=st.integers(0, 8), start=STARTS)
    def grow(self, name: str, total: int, start: int) -> None:
        self.attempt(lambda image: topics.add_partitions(image, name, total, CONFIG, start=start))

    @rule(name=NAMES, config=CONFIGS)
    def configure(self, name: str, config: dict[str, str | None]) -> None:
        self.attempt(lambda image: configs.replace_topic_config(image, name, config, CONFIG))

    @rule(broker=BROKER_IDS)
    def start(self, broker: BrokerId) -> None:
        self.attempt(lambda image: brokers.register_broker(image, broker_image(broker)))
        epoch = int(self.image.revision)
        self.attempt(lambda image: leaders.settle_leaders(image, CONFIG))
        self.attempt(lambda image: brokers.note_ready(image, broker, epoch))
        self.attempt(lambda image: leaders.settle_leaders(image, CONFIG))

    @rule(broker=BROKER_IDS)
    def start_and_die(self, broker: BrokerId) -> None:
        """It dies before it is ready: its lease ends later."""
        self.attempt(lambda image: brokers.register_broker(image, broker_image(broker)))
        self.attempt(lambda image: leaders.settle_leaders(image, CONFIG))

    @rule(broker=BROKER_IDS)
    def leave(self, broker: BrokerId) -> None:
        self.die_together({broker})

    @rule(brokers=st.sets(BROKER_IDS))
    def die_together(self, brokers: set[BrokerId]) -> None:
        known = sorted(brokers & self.image.registered.keys())
        self.write(tuple(Change(broker_key(broker), None) for broker in known))
        ready = sorted(brokers & self.image.ready.keys())
        self.write(tuple(Change(ready_key(broker), None) for broker in ready))
        self.attempt(lambda image: leaders.settle_leaders(image, CONFIG))

    @rule(name=NAMES, index=st.integers(0, 3), isr=st.lists(BROKER_IDS, max_size=4, unique=True))
    def alter_isr(self, name: str, index: int, isr: list[BrokerId]) -> None:
        tp = TopicPartition(name, index)
        partition = self.image.partition(tp)
        if partition is None or partition.leader is None:
            return
        change = leaders.IsrChange(
            tp, tuple(isr), partition.leader, partition.leader_epoch, partition.partition_epoch
        )
        rules = leaders.replication_rules(self.image.broker_config, CONFIG)
        self.attempt(lambda image: leaders.alter_isr(image, change, rules))

    @rule()
    def prefer(self) -> None:
        self.attempt(lambda image: leaders.prefer_leaders(image, CONFIG))

    @rule(name=NAMES, index=st.integers(0, 3), to=st.lists(BROKER_IDS, max_size=4))
    def move(self, name: str, index: int, to: list[BrokerId]) -> None:
        tp = TopicPartition(name, index)
        self.attempt_move(lambda image: reassignment.begin_move(image, tp, to, CONFIG))

    @rule(name=NAMES, index=st.integers(0, 3))
    def cancel(self, name: str, index: int) -> None:
        tp = TopicPartition(name, index)
        self.attempt_move(lambda image: reassignment.cancel_move(image, tp, CONFIG))

    @rule(name=NAMES, index=st.integers(0, 3))
    def catch_up(self, name: str, index: int) -> None:
        """Every live replica joins the ISR, which ends a move if its target is alive."""
        tp = TopicPartition(name, index)
        partition = self.image.partition(tp)
        if partition is not None:
            live = [one for one in partition.replicas if one in self.image.brokers]
            self.alter_isr(name, index, live)
            partition = self.image.partition(tp)
            assert partition is not None
            if partition.is_moving and partition.leader is not None:
                assert set(partition.target) - self.image.brokers.keys()

    @rule(broker=BROKER_IDS, is_draining=st.booleans())
    def want(self, broker: BrokerId, is_draining: bool) -> None:
        self.attempt(
            lambda image: reassignment.set_draining(image, broker, is_draining=is_draining)
        )

    @rule()
    def drain(self) -> None:
        self.attempt_move(lambda image: reassignment.drain(image, CONFIG))
        assert sum(1 for _ in reassignment.moving_partitions(self.image)) <= 12
        again = reassignment.drain(self.image, replace(CONFIG, reassignment_concurrent_max=1))
        under_way = sum(1 for _ in reassignment.moving_partitions(self.image))
        assert not again.changes or under_way <= 1, "it goes on only where there is room"

    @rule(broker=BROKER_IDS)
    def remove(self, broker: BrokerId) -> None:
        self.attempt(lambda image: reassignment.remove_broker(image, broker))

    def attempt_move(self, decide: Callable[[ClusterImage], Decision[Any]]) -> None:
        """A move alone brings no replica into the ISR, and none that was removed stays known."""
        before = self.image
        self.attempt(decide)
        for topic in self.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                old = before.topics[topic.name].partitions[index]
                assert set(partition.isr) <= {*old.isr, *old.elr}
                if not set(old.replicas) <= set(partition.replicas):
                    assert partition.leader_epoch > old.leader_epoch

    @invariant()
    def a_move_has_replicas_to_add_or_remove_and_a_target_and_an_origin(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                assert set(partition.adding) <= set(partition.replicas)
                assert set(partition.removing) <= set(partition.replicas)
                assert partition.target
                assert partition.original
                if partition.is_moving and partition.leader is not None:
                    assert not set(partition.target) <= set(partition.isr), "it would be done"

    @invariant()
    def a_broker_that_was_removed_has_nothing(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                assert set(partition.replicas) <= self.image.members.keys()

    @invariant()
    def a_leader_is_alive_and_in_sync(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                if partition.leader is not None:
                    assert partition.leader in partition.isr
                    assert set(partition.isr) <= self.image.brokers.keys()

    @invariant()
    def in_sync_are_some_of_the_replicas_and_never_none(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                assert partition.isr
                assert set(partition.isr) <= set(partition.replicas)
                assert len(set(partition.replicas)) == len(partition.replicas)
                assert len(set(partition.isr)) == len(partition.isr)

    @invariant()
    def a_partition_without_a_leader_has_nobody_alive_who_could_lead(self) -> None:
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                if partition.leader is None:
                    sound = {*partition.isr, *partition.elr}
                    is_waiting = sound & self.image.registered.keys()
                    is_unclean = UNCLEAN in topic.config and not is_waiting
                    may = set(partition.replicas) if is_unclean else sound
                    assert not may & self.image.brokers.keys()

    @invariant()
    def an_eligible_replica_is_not_in_sync_and_none_is_with_enough_in_sync(self) -> None:
        for topic in self.image.topics.values():
            isr_min = int(topic.config.get("min.insync.replicas", "1"))
            for partition in topic.partitions:
                assert not set(partition.elr) & set(partition.isr)
                assert set(partition.elr) <= set(partition.replicas)
                if partition.leader is not None and partition.elr:
                    sizes = (len(partition.original), len(partition.target))
                    assert len(partition.isr) < min(isr_min, *sizes)

    @invariant()
    def an_id_is_given_to_one_topic_ever(self) -> None:
        for topic in self.image.topics.values():
            assert self.ids_seen.setdefault(topic.id, topic.name) == topic.name
            assert self.image.topic_names[topic.id] == topic.name
        assert len(self.image.topic_names) == len(self.image.topics)

    @invariant()
    def epochs_never_go_back_and_grow_with_every_change(self) -> None:
        for topic in self.image.topics.values():
            for index, new in enumerate(topic.partitions):
                old = self.seen.setdefault((topic.id, index), new)
                assert new.leader_epoch >= old.leader_epoch
                assert new.partition_epoch >= old.partition_epoch
                if new.leader != old.leader:
                    assert new.leader_epoch > old.leader_epoch
                if replace(new, partition_epoch=0) != replace(old, partition_epoch=0):
                    assert new.partition_epoch > old.partition_epoch
                self.seen[topic.id, index] = new

    @invariant()
    def the_limit_is_kept_and_names_do_not_collide(self) -> None:
        assert self.image.partition_count <= CONFIG.partitions_max
        folded = Counter(name.replace(".", "_") for name in self.image.topics)
        assert set(folded.values()) <= {1}

    @invariant()
    def whoever_reads_the_store_anew_sees_the_same(self) -> None:
        entries = tuple(self.entries[key] for key in sorted(self.entries))
        assert read_image(Snapshot(self.image.revision, entries)) == self.image


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(max_examples=examples(60), stateful_step_count=30)


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8),
    partitions=st.integers(1, 40),
    start=STARTS,
    data=st.data(),
)
def test_replicas_are_spread(
    racks: list[str | None], partitions: int, start: int, data: st.DataObject
) -> None:
    brokers = [broker_image(number, rack=rack) for number, rack in enumerate(racks)]
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, range(partitions), factor, start=start)
    leaders = Counter(replicas[0] for replicas in placed)
    loads = [leaders[broker.id] for broker in brokers]
    assert max(loads) - min(loads) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks)))


@given(brokers=st.integers(1, 8), rounds=st.integers(1, 4), start=STARTS, data=st.data())
def test_without_racks_every_broker_holds_equally_many_replicas_after_whole_rounds(
    brokers: int, rounds: int, start: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    images = [broker_image(number) for number in range(brokers)]
    placed = place(images, range(brokers * rounds), factor, start=start)
    held = Counter(broker for replicas in placed for broker in replicas)
    assert set(held.values()) == {rounds * factor}
