"""A produce request gets the same answer by the short way as by the general one.

Two handlers over two equal sets of logs; one of them is only ever asked in general.
"""

from struct import pack
from types import SimpleNamespace
from typing import NamedTuple, cast

from hypothesis import given
from hypothesis import strategies as st

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.handlers.produce import Produce
from ottla.broker.pending import Pending, Response
from ottla.broker.services import Services
from ottla.config import Durability, TopicConfig
from ottla.errors import ProtocolViolation, UnknownTopicId, UnknownTopicOrPartition
from ottla.model import BrokerId, TimestampMs, TopicPartition, Uuid
from ottla.protocol.api import APIS, ApiKey
from ottla.protocol.codec import encode
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import PRODUCE_TOPIC_IDS
from ottla.protocol.messages import produce as generic
from ottla.replication.partition import LeaderPartition
from ottla.storage.log import Log

VERSIONS = list(APIS[ApiKey.PRODUCE].versions)
BROKER = BrokerId(0)
REPLICATED = TopicConfig(durability=Durability.REPLICATED, max_message_bytes=400)
BEHIND_ALL_S = 2.0**31 / 1000  # a body with a changed byte may have any timeout
DURABLE = TopicConfig(durability=Durability.FSYNC, max_message_bytes=400)


class Clock:
    """Stands still."""

    def now_ms(self) -> TimestampMs:
        return build.NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


class Flushes:
    """Remembers who wants to be on disk."""

    def __init__(self) -> None:
        self.wanted: list[Log] = []

    def request(self, log: Log) -> None:
        self.wanted.append(log)


class Leaders:
    """A topic in the page cache and one on disk; a third has too few replicas in sync."""

    def __init__(self) -> None:
        self.flushes = Flushes()
        self.files = {name: MemoryFiles() for name in ("cached", "durable", "lonely")}
        self.partitions = {
            "cached": self._partition("cached", REPLICATED, 1),
            "durable": self._partition("durable", DURABLE, 1),
            "lonely": self._partition("lonely", TopicConfig(min_insync_replicas=2), 2),
        }

    def _partition(self, name: str, config: TopicConfig, replicas: int) -> LeaderPartition:
        return led_partition(
            TopicPartition(name, 0),
            build.log(self.files[name], config),
            broker_id=BROKER,
            leader_epoch=build.EPOCH,
            replicas=tuple(map(BrokerId, range(replicas))),
            isr=frozenset({BROKER}),
            flusher=self.flushes,
            soon=lambda wake: wake(),
        )

    @property
    def writable(self) -> "Leaders":
        return self

    def locate(self, key: TopicKey, index: int) -> LeaderPartition:
        if isinstance(key, bytes):
            name = {pad(name): name for name in self.partitions}.get(key)
            if name is None:
                raise UnknownTopicId("no topic has this id")
            key = name
        if key not in self.partitions or index != 0:
            raise UnknownTopicOrPartition(f"there is no partition {key}-{index}")
        return self.partitions[key]

    def flush(self) -> None:
        for log in self.flushes.wanted:
            log.flush()
        self.flushes.wanted.clear()

    def content(self) -> list[bytes]:
        return [
            files.read_whole(build.DIRECTORY / "00000000000000000000.log")
            for files in self.files.values()
        ]


def pad(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


class Sent(NamedTuple):
    """One request, as its bytes behind the header."""

    version: int
    correlation_id: int
    body: bytes


@st.composite
def batches(draw: st.DrawFn) -> bytes | None:
    kind = draw(
        st.sampled_from(("plain", "plain", "numbered", "transactional", "junk", "none", "large"))
    )
    if kind == "none":
        return None
    if kind == "junk":
        return draw(st.binary(max_size=100))
    is_known = kind in ("numbered", "transactional")
    batch = build.batch(
        draw(st.integers(1, 3)),
        value=bytes(500 if kind == "large" else 10),
        producer_id=9 if is_known else -1,
        producer_epoch=0 if is_known else -1,
        base_sequence=draw(st.integers(0, 3)) if is_known else -1,
        is_transactional=kind == "transactional",
        timestamp_ms=draw(st.sampled_from((build.NOW_MS, build.NOW_MS + 10**8))),
    )
    if draw(st.integers(0, 4)) == 0:
        batch[draw(st.integers(0, len(batch) - 1))] ^= draw(st.integers(1, 255))
    return bytes(batch)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    version = draw(st.sampled_from(VERSIONS))
    by_id = version >= PRODUCE_TOPIC_IDS
    topics = []
    for _ in range(draw(st.sampled_from((1, 1, 1, 1, 0, 2)))):
        name = draw(st.sampled_from(("cached", "cached", "durable", "lonely", "unknown", "")))
        partitions = [
            generic.PartitionProduceData(
                index=draw(st.sampled_from((0, 0, 0, 1, -1))), records=draw(batches())
            )
            for _ in range(draw(st.sampled_from((1, 1, 1, 1, 0, 2))))
        ]
        topics.append(
            generic.TopicProduceData(
                name="" if by_id else name,
                topic_id=Uuid(pad(name) if by_id else bytes(16)),
                partition_data=partitions,
            )
        )
    request = generic.ProduceRequest(
        transactional_id=draw(st.sampled_from((None, None, None, "tx"))),
        acks=draw(st.sampled_from((1, 1, -1, -1, 0, 2, -2))),
        timeout_ms=draw(st.sampled_from((0, 30_000, -1))),
        topic_data=topics,
    )
    body = bytearray(encode(request, version))
    if draw(st.integers(0, 4)) == 0:
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)) == 0:
        del body[draw(st.integers(0, len(body))) :]
    return Sent(version, draw(st.integers(-5, 5)), bytes(body))


Outcome = Response | str  # a violation by its text


def take(handler: Produce, sent: Sent, *, shortly: bool) -> Outcome:
    way = handler.take if shortly else handler._take_all
    frame = memoryview(bytearray(pack(">h", 0) + sent.body))
    try:
        return way(frame, 2, sent.version, sent.correlation_id)
    except ProtocolViolation as violation:
        return str(violation)


def seen(outcome: Outcome) -> object:
    """What can be compared: a promise by what it has become."""
    return ("promised", outcome.parts) if isinstance(outcome, Pending) else outcome


class NoVerification:
    """No transaction has to be verified."""

    def hold(self, *_: object) -> None:
        return None


def produce(leaders: Leaders) -> Produce:
    services = SimpleNamespace(
        replicas=leaders, clock=Clock(), produce_verification=NoVerification()
    )
    return Produce(cast("Services", services))


@given(st.lists(requests(), min_size=1, max_size=8))
def test_short_and_general_way_give_the_same_answers(taken: list[Sent]) -> None:
    short_leaders, general_leaders = Leaders(), Leaders()
    short = produce(short_leaders)
    general = produce(general_leaders)
    promises = []
    for sent in taken:
        one = take(short, sent, shortly=True)
        other = take(general, sent, shortly=False)
        assert seen(one) == seen(other)
        promises.append((one, other))
    assert short_leaders.content() == general_leaders.content()
    assert short.waiting_count == general.waiting_count
    assert short.traffic == general.traffic
    assert short.error_counts == general.error_counts
    short_leaders.flush()
    general_leaders.flush()
    for handler in (short, general):
        handler._monotonic_s = lambda: BEHIND_ALL_S
        handler.expire()
        assert handler.waiting_count == 0
    assert all(seen(one) == seen(other) for one, other in promises)
