"""A member of a group in a process of its own: `group_process.py SETTINGS-AS-JSON`.

Prints a line of JSON for each thing that happens, [AT_S, WHAT, ...], where AT_S is the machine's
monotonic clock, which all processes share:

    assigned, revoked, lost   [[TOPIC, PARTITION], ...]
    read                      TOPIC, PARTITION, OFFSET
    committed                 [[TOPIC, PARTITION, OFFSET], ...], the broker said so
    refused                   [[TOPIC, PARTITION, OFFSET], ...], REASON

AT_S of a commit is when it was asked for: the answer may have waited in a frozen process.
A member commits after each small batch, and what is left before it gives a partition up. `revoked`
is printed when it has done that, and before its client tells the group. SIGTERM makes it leave.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
import warnings
from typing import Any, Final

BATCH: Final = 40
POLL_S: Final = 0.1
# A sync that is answered between two polls of kafka-python 3.0.12 is forgotten: the member lives on
# in its group and owns nothing. So a poll is longer than a rebalance; records end it at once.
LONG_POLL_S: Final = 10.0
START_ATTEMPTS: Final = 200

warnings.simplefilter("ignore", DeprecationWarning)


class Diary:
    """Says what happens, and remembers what has been read and not committed."""

    def __init__(self) -> None:
        self.uncommitted: dict[tuple[str, int], int] = {}
        self.is_told_to_leave = False
        self._asked_s = 0.0
        signal.signal(signal.SIGTERM, self._note_signal)

    def _note_signal(self, *_: object) -> None:
        self.is_told_to_leave = True

    def note_assigned(self, partitions: Any) -> None:
        self._say("assigned", _pairs(partitions))

    def note_revoked(self, partitions: Any) -> None:
        self._forget(partitions)
        self._say("revoked", _pairs(partitions))

    def note_lost(self, partitions: Any) -> None:
        self._forget(partitions)
        self._say("lost", _pairs(partitions))

    def note_read(self, topic: str, partition: int, offset: int) -> None:
        self.uncommitted[topic, partition] = offset + 1
        self._say("read", topic, partition, offset)

    def note_asking(self) -> None:
        self._asked_s = time.monotonic()

    def note_committed(self) -> None:
        self._say("committed", self._take_uncommitted(), at_s=self._asked_s)

    def note_refused(self, reason: object) -> None:
        self._say("refused", self._take_uncommitted(), repr(reason), at_s=self._asked_s)

    def _take_uncommitted(self) -> list[tuple[str, int, int]]:
        taken = [(*tp, offset) for tp, offset in self.uncommitted.items()]
        self.uncommitted.clear()
        return taken

    def _forget(self, partitions: Any) -> None:
        for topic, partition in _pairs(partitions):
            self.uncommitted.pop((topic, partition), None)

    def _say(self, what: str, *facts: object, at_s: float | None = None) -> None:
        line = [time.monotonic() if at_s is None else at_s, what, *facts]
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _pairs(partitions: Any) -> list[tuple[str, int]]:
    return sorted((p.topic, p.partition) for p in partitions)


def run_confluent(settings: dict[str, Any], diary: Diary) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(_confluent_config(settings))

    def commit() -> None:
        if not diary.uncommitted:
            return
        offsets = [
            confluent_kafka.TopicPartition(*tp, offset) for tp, offset in diary.uncommitted.items()
        ]
        diary.note_asking()
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as refused:
            diary.note_refused(refused)
            return
        problem = next((answer.error for answer in answers if answer.error is not None), None)
        if problem is None:
            diary.note_committed()
        else:
            diary.note_refused(problem)

    def give_up(_: Any, partitions: Any) -> None:
        commit()
        diary.note_revoked(partitions)

    consumer.subscribe(
        settings["topics"] or ["^" + settings["pattern"]],
        on_assign=lambda _, partitions: diary.note_assigned(partitions),
        on_revoke=give_up,
        on_lost=lambda _, partitions: diary.note_lost(partitions),
    )
    read_count = 0
    while not diary.is_told_to_leave:
        message: Any = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            diary.note_read(message.topic(), message.partition(), message.offset())
            read_count += 1
        if message is None or read_count % BATCH == 0:
            commit()
    commit()
    consumer.close()


def _confluent_config(settings: dict[str, Any]) -> dict[str, Any]:
    config = {
        "bootstrap.servers": settings["address"],
        "group.id": settings["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        # librdkafka 2.16 forgets a broker that was the only one and went down, to look for it anew;
        # now and then it goes on waiting for the coordinator that it forgot.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }
    if settings["instance"]:
        config["group.instance.id"] = settings["instance"]
    if settings["strategy"] == "consumer":
        return {**config, "group.protocol": "consumer"}
    return {
        **config,
        "partition.assignment.strategy": settings["strategy"],
        "session.timeout.ms": settings["session_ms"],
        "heartbeat.interval.ms": settings["heartbeat_ms"],
        "max.poll.interval.ms": max(settings["session_ms"], 60_000),
    }


def run_kafka_python(settings: dict[str, Any], diary: Diary) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaConnectionError, KafkaError

    strategies = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
    consumer = KafkaConsumer(
        bootstrap_servers=settings["address"],
        group_id=settings["group"],
        group_instance_id=settings["instance"] or None,
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["heartbeat_ms"],
        max_poll_interval_ms=max(settings["session_ms"], 60_000),
        partition_assignment_strategy=(strategies[settings["strategy"]],),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=1000,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
        metrics_enabled=False,
    )

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            diary.note_assigned(assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            diary.note_revoked(revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            diary.note_lost(lost)

    consumer.subscribe(
        topics=settings["topics"] or (), pattern=settings["pattern"] or None, listener=Listener()
    )
    while not diary.is_told_to_leave:
        found: dict[Any, list[Any]] = {}
        # While it looks for its coordinator, poll raises what a refresh of the metadata met: here
        # a broker that was killed. Nothing was read, and the next poll looks again.
        with contextlib.suppress(KafkaConnectionError):
            found = consumer.poll(timeout_ms=LONG_POLL_S * 1000, max_records=BATCH)
        for records in found.values():
            for record in records:
                diary.note_read(record.topic, record.partition, record.offset)
        if found:
            diary.note_asking()
            try:
                consumer.commit()
            except KafkaError as refused:
                diary.note_refused(refused)
            else:
                diary.note_committed()
    consumer.close()


async def run_aiokafka(settings: dict[str, Any], diary: Diary) -> None:
    from aiokafka import ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    at_work = asyncio.Lock()  # its client rebalances while a batch may be in our hands

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: Any) -> None:
            diary.note_assigned(assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            async with at_work:
                diary.note_revoked(revoked)

    consumer = await _started_aiokafka(settings, Listener())
    while not diary.is_told_to_leave:
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH)
        async with at_work:
            for records in found.values():
                for record in records:
                    diary.note_read(record.topic, record.partition, record.offset)
            if found:
                diary.note_asking()
                try:
                    await consumer.commit()
                except KafkaError as refused:
                    diary.note_refused(refused)
                else:
                    diary.note_committed()
    diary.note_revoked(consumer.assignment())  # its client leaves without asking its listener
    await consumer.stop()


async def _started_aiokafka(settings: dict[str, Any], listener: Any) -> Any:
    """Its client gives up at once when no broker is there, as in the middle of a restart."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaConnectionError

    strategies = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    more = {"group_instance_id": settings["instance"]} if settings["instance"] else {}
    for _ in range(START_ATTEMPTS):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings["address"],
            group_id=settings["group"],
            session_timeout_ms=settings["session_ms"],
            heartbeat_interval_ms=settings["heartbeat_ms"],
            rebalance_timeout_ms=max(settings["session_ms"], 60_000),
            partition_assignment_strategy=(strategies[settings["strategy"]],),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
            **more,
        )
        consumer.subscribe(
            topics=settings["topics"] or (),
            pattern=settings["pattern"] or None,
            listener=listener,
        )
        try:
            await consumer.start()
        except KafkaConnectionError:
            await consumer.stop()
            await asyncio.sleep(POLL_S)
        else:
            return consumer
    raise SystemExit("no broker in sight")


def main() -> None:
    settings = json.loads(sys.argv[1])
    diary = Diary()
    if settings["client"] == "confluent":
        run_confluent(settings, diary)
    elif settings["client"] == "kafka-python":
        run_kafka_python(settings, diary)
    else:
        asyncio.run(run_aiokafka(settings, diary))


if __name__ == "__main__":
    main()
