"""Producers while partitions of their topic are sealed and opened: nothing is lost or doubled."""

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes import build
from fakes.cluster_images import CONFIG, after, cluster, create
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.cluster.controller.configs import ConfigEdit, EditKind, alter_topic_config
from ottla.cluster.image import TopicImage
from ottla.config import Durability, TopicConfig
from ottla.errors import OutOfOrderSequence
from ottla.model import BrokerId, LeaderEpoch, TopicPartition
from ottla.replication.forwarding import Forwarding
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.replication.peer_forwarding import PeerForwarding
from ottla.storage.log import Log
from sizes import examples

COUNT = 6
BROKER = BrokerId(1)
IN_FLIGHT = 5


class NoFlusher:
    def request(self, log: Log) -> None:
        return


def no_peers() -> PeerForwarding:
    raise AssertionError("all partitions are led here")


def leader(index: int) -> LeaderPartition:
    config = TopicConfig(durability=Durability.REPLICATED)
    return led_partition(
        TopicPartition("orders", index),
        build.log(MemoryFiles(), config, directory=Path(f"orders-{index}")),
        broker_id=BROKER,
        leader_epoch=LeaderEpoch(0),
        replicas=(BROKER,),
        isr=(BROKER,),
        flusher=NoFlusher(),
        soon=lambda callback: callback(),
    )


class SealedTopic(RuleBasedStateMachine):
    """Two producers write to every partition of a topic, and repeat what they have sent."""

    def __init__(self) -> None:
        super().__init__()
        image = cluster(1)
        self.image = after(image, create(image, partition_count=COUNT, replication_factor=1))
        self.leaders: dict[tuple[str, int], LeaderPartition] = {
            ("orders", index): leader(index) for index in range(COUNT)
        }
        self.forwarding = Forwarding(self.leaders, lambda: self.image, no_peers)
        # Of each producer in each partition: the first sequence and offset of its last batches.
        self.sent: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.epochs: dict[tuple[int, int], int] = {}
        self.total = 0
        self.sealed_ends: dict[int, int] = {}

    @property
    def topic(self) -> TopicImage:
        return self.image.topics["orders"]

    def append(self, producer: int, index: int, sequence: int, count: int) -> int:
        epoch = self.epochs.get((producer, index), 0)
        batch = build.batch(
            count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        way = self.forwarding.route(TopicPartition("orders", index))
        return way.append(memoryview(batch), ACKS_ALL, build.NOW_MS).base_offset

    @rule(producer=st.integers(7, 8), index=st.integers(0, COUNT - 1), count=st.integers(1, 3))
    def send(self, producer: int, index: int, count: int) -> None:
        sent = self.sent.setdefault((producer, index), [])
        sequence = sent[-1][0] + sent[-1][1] if sent else 0
        offset = self.append(producer, index, sequence, count)
        sent.append((sequence, count, offset))
        self.total += count

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        producer, index = data.draw(st.sampled_from(sorted(k for k, v in self.sent.items() if v)))
        recent = self.sent[producer, index][-IN_FLIGHT:]
        sequence, count, offset = data.draw(st.sampled_from(recent))
        assert self.append(producer, index, sequence, count) == offset

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        """A batch behind one that has failed is refused, wherever the last one is."""
        producer, index = data.draw(st.sampled_from(sorted(k for k, v in self.sent.items() if v)))
        sequence, count, _ = self.sent[producer, index][-1]
        try:
            self.append(producer, index, sequence + count + 1, 1)
        except OutOfOrderSequence:
            return
        raise AssertionError("a gap was accepted")

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def begin_epoch(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted(k for k, v in self.sent.items() if v)))
        self.epochs[known] = self.epochs.get(known, 0) + 1
        self.sent[known] = []

    @rule(active=st.integers(1, COUNT))
    def resize(self, active: int) -> None:
        edit = ConfigEdit(EditKind.SET, "active.partitions", str(active))
        self.image = after(self.image, alter_topic_config(self.image, "orders", [edit], CONFIG))
        self.sealed_ends = {
            index: self.leaders["orders", index].log.end_offset for index in range(active, COUNT)
        }

    @rule(index=st.integers(0, COUNT - 1))
    def reopen_log(self, index: int) -> None:
        """The log is opened again by a new leader: what it knows is what is in the log."""
        old = self.leaders["orders", index].log
        files, directory = old.files, Path(f"orders-{index}")
        config = TopicConfig(durability=Durability.REPLICATED)
        self.leaders["orders", index].log = build.log(files, config, directory=directory)

    @invariant()
    def every_record_is_there_once(self) -> None:
        assert sum(led.log.end_offset for led in self.leaders.values()) == self.total

    @invariant()
    def sealed_partitions_do_not_grow(self) -> None:
        for index, end in self.sealed_ends.items():
            assert self.leaders["orders", index].log.end_offset == end


TestSealedTopic = SealedTopic.TestCase
TestSealedTopic.settings = settings(max_examples=examples(60), stateful_step_count=40)
