"""MirrorMaker between Ottla and Apache Kafka, in both directions, topics with unusual settings.

Records, settings and the offsets of a group arrive on the other side.
"""

from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cli.processes import wait_until
from compat import records
from compat.apache import ApacheBroker
from compat.java_process import JavaProcess
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka"), pytest.mark.timeout(900)]

COUNT: Final = 500
_SETTINGS: Final = """\
clusters=ottla,apache
ottla.bootstrap.servers={ottla}
apache.bootstrap.servers={apache}
ottla->apache.enabled=true
apache->ottla.enabled=true
ottla->apache.topics=from-ottla.*
apache->ottla.topics=from-apache.*
groups=readers
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
sync.topic.configs.interval.seconds=2
emit.checkpoints.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
offset.lag.max=0
dedicated.mode.enable.internal.rest=false
"""
# Settings that few topics have, but for those that MirrorMaker leaves alone on purpose (timestamps,
# throttled replicas, in-sync replicas).
UNUSUAL: Final = {
    "compact": {"cleanup_policy": "compact,delete", "min_compaction_lag_ms": "5000"},
    "flush": {"flush_ms": "1000", "flush_messages": "100", "preallocate": "true"},
    "segments": {"segment_index_bytes": "100000", "segment_jitter_ms": "10", "segment_ms": "90000"},
    "compressed": {"compression_type": "zstd", "compression_zstd_level": "5"},
    "local": {"local_retention_ms": "1000", "remote_log_copy_disable": "true"},
    "times": {"delete_retention_ms": "5000", "file_delete_delay_ms": "100"},
}

_PASSING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)

Broker = OttlaBroker | ApacheBroker


class Mirrors:
    """Two brokers and MirrorMaker in between."""

    def __init__(self, ottla: OttlaBroker, apache: ApacheBroker, program: JavaProcess) -> None:
        self._brokers: dict[str, Broker] = {"ottla": ottla, "apache": apache}
        self.program = program

    def address(self, name: str) -> str:
        return self._brokers[name].address

    @staticmethod
    def other(name: str) -> str:
        return "apache" if name == "ottla" else "ottla"


def content(source: str, topic: str) -> list[tuple[str | None, str]]:
    return [(f"key-{number}", f"{topic} of {source}: {number}") for number in range(COUNT)]


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrors]:
    directory = tmp_path_factory.mktemp("mirrors")
    with (
        ApacheBroker(directory / "apache") as apache,
        OttlaBroker(directory / "ottla") as ottla,
    ):
        for source, broker in (("ottla", ottla), ("apache", apache)):
            for name, settings in UNUSUAL.items():
                topic = f"from-{source}-{name}"
                records.create_topics(broker.address, 1, topic, **settings)
                records.send(broker.address, topic, content(source, name))
        settings_file = directory / "mirror.properties"
        settings_file.write_text(_SETTINGS.format(ottla=ottla.address, apache=apache.address))
        main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
        with JavaProcess(directory / "mirror", main_class, str(settings_file)) as program:
            yield Mirrors(ottla, apache, program)


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("source", ["ottla", "apache"])
def test_records_and_settings_of_a_topic_arrive(mirrors: Mirrors, source: str, name: str) -> None:
    target = mirrors.address(mirrors.other(source))
    mirrored = f"{source}.from-{source}-{name}"
    found = records.read_until(
        target, mirrored, 1, lambda found: len(found) >= COUNT, mirrors.program.assert_alive
    )
    assert found == content(source, name)
    wanted = {setting.replace("_", "."): value for setting, value in UNUSUAL[name].items()}
    _await_settings(target, mirrored, wanted)


def _await_settings(address: str, topic: str, wanted: dict[str, str]) -> None:
    """Settings follow their topic a moment later."""
    wait_until(
        lambda: wanted.items() <= records.topic_settings(address, topic).items(),
        f"{topic} has {wanted}",
    )


def _is_committed(consumer: Consumer, place: TopicPartition) -> bool:
    """False while the coordinator is not found or still loads."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as problem:
        if not problem.args[0].retriable() and problem.args[0].code() not in _PASSING:
            raise
        return False
    return True


@pytest.mark.parametrize("source", ["ottla", "apache"])
def test_the_offsets_of_a_group_arrive(mirrors: Mirrors, source: str) -> None:
    place = TopicPartition(f"from-{source}-times", 0, COUNT)
    settings = {"group.id": "readers", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": mirrors.address(source), **settings})
    wait_until(lambda: _is_committed(consumer, place), "the group commits its offset")
    consumer.close()
    target = mirrors.address(mirrors.other(source))
    follower = Consumer({"bootstrap.servers": target, **settings})
    mirrored = TopicPartition(f"{source}.{place.topic}", 0)
    try:
        wait_until(
            lambda: follower.committed([mirrored], 60)[0].offset == COUNT,
            f"the group's offset in {mirrored.topic}",
        )
    finally:
        follower.close()
