"""Producers that never give up, and what must be true of everything they were told.

Every record carries the name of its producer and a number that counts up per partition. So a
partition that was read tells by itself what was lost, doubled or put out of order.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from fakes.consumed import position_of, value_of

PATIENCE_S: Final = 60
_BURST: Final = 2  # records per partition and turn: a steady load that leaves the disk some air
_TURN_S: Final = 0.01
_UNSETTLED_MAX: Final = 500
_FILLER: Final = "." * 60

# librdkafka tells its log of every refused connection; here that is the point.
# librdkafka 2.16 forgets a broker that was the only one and went down, to look for it anew; now and
# then it goes on waiting for the coordinator that it forgot.
STEADY: Final = {"metadata.recovery.strategy": "none"}
SILENT: Final = logging.getLogger("crash.librdkafka")
SILENT.setLevel(logging.CRITICAL + 1)

Partition = tuple[str, int]
Promises = dict[Partition, list["Acked"]]


class Acked(NamedTuple):
    """A promise: this number is at this offset.

    It has no offset if the acknowledgement has none: a batch waits at the old leader, and the next
    one goes to the new leader, which has the first. When that is acknowledged, librdkafka counts
    the first as written too.
    """

    offset: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Letter:
    """One record as a consumer sees it."""

    offset: int
    producer: str
    number: int


class Load:
    """One producer that writes to some partitions until it is told to stop.

    Connections come and go with the broker; the producer stays. Only its own thread touches it.
    """

    def __init__(
        self,
        address: str,
        name: str,
        partitions: Sequence[Partition],
        *,
        is_idempotent: bool,
        turn_s: float = _TURN_S,
        **more: Any,
    ) -> None:
        self.name = name
        self._turn_s = turn_s
        self.is_idempotent = is_idempotent
        self.acked: dict[Partition, list[Acked]] = {partition: [] for partition in partitions}
        self.failed: list[KafkaError] = []
        self._sent = dict.fromkeys(partitions, 0)
        self._is_over = threading.Event()
        self._is_paused = threading.Event()
        self._acked_count = 0
        self._heard = threading.Condition()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": is_idempotent,
                # More in flight would let a retry of the plain producer overtake.
                "max.in.flight.requests.per.connection": 5 if is_idempotent else 1,
                "linger.ms": 2,
                "message.timeout.ms": 240_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "logger": SILENT,
                **STEADY,
                **more,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"load-{name}")

    @property
    def acked_count(self) -> int:
        return self._acked_count

    def start(self) -> None:
        self._thread.start()

    def wait_acked(self, count: int) -> None:
        """Return when this many records have been acknowledged in all."""
        with self._heard:
            reached = self._heard.wait_for(lambda: self._acked_count >= count, PATIENCE_S)
        assert reached, f"{self.name}: {self._acked_count} of {count} after {PATIENCE_S} s"

    def wait_failed(self, count: int) -> None:
        """Return when this many records have been refused in all."""
        with self._heard:
            reached = self._heard.wait_for(lambda: len(self.failed) >= count, PATIENCE_S)
        assert reached, f"{self.name}: {len(self.failed)} of {count} after {PATIENCE_S} s"

    def pause(self) -> None:
        """Send nothing new for a while; what is under way goes on."""
        self._is_paused.set()

    def resume(self) -> None:
        self._is_paused.clear()

    def stop(self) -> None:
        """Send no more, and wait until everything that was sent is settled."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if not self._is_paused.is_set() and len(self._producer) < _UNSETTLED_MAX:
                self._send_burst()
            self._producer.poll(self._turn_s)
        left = self._producer.flush(PATIENCE_S)
        assert left == 0 or self.failed, f"{self.name}: {left} records were never settled"

    def _send_burst(self) -> None:
        for (topic, partition), number in list(self._sent.items()):
            for following in range(number, number + _BURST):
                self._producer.produce(
                    topic,
                    partition=partition,
                    key=self.name,
                    value=f"{following} {_FILLER}",
                    on_delivery=self._note,
                )
            self._sent[topic, partition] = number + _BURST

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            with self._heard:
                self.failed.append(error)
                self._heard.notify_all()
            return
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        self.acked[topic, partition].append(Acked(message.offset(), _number(message)))
        with self._heard:
            self._acked_count += 1
            self._heard.notify_all()


def read_all(
    address: str, partitions: Iterable[Partition], *, last: int | None = None
) -> dict[Partition, list[Letter]]:
    """Everything that a consumer can read now, or only the `last` records of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # retention may be faster than the first fetch
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 0,
            "reconnect.backoff.ms": 10,
            "logger": SILENT,
        }
    )
    try:
        ends = {one: _end(consumer, one) for one in partitions}
        found: dict[Partition, list[Letter]] = {partition: [] for partition in ends}
        left = {partition for partition, (start, end) in ends.items() if start < end}
        consumer.assign(
            [TopicPartition(*partition, _first(*ends[partition], last)) for partition in left]
        )
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if not left:
                return found
            for message in consumer.consume(10_000, timeout=0.1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                topic, index, offset = position_of(message)
                found[topic, index].append(letter_of(message))
                if offset >= ends[topic, index][1] - 1:
                    left.discard((topic, index))
        raise AssertionError(f"{left} never came to an end")
    finally:
        consumer.close()


def ends_of(load: Load) -> dict[Partition, int]:
    """Where each partition ends, as the only producer that writes to it was told."""
    return {
        partition: 1 + max(one.offset for one in acked if one.offset is not None)
        for partition, acked in load.acked.items()
    }


def promises_of(loads: Iterable[Load]) -> dict[Load, Promises]:
    """What every load has been promised so far. Take it before reading what there is."""
    return {
        load: {partition: list(acked) for partition, acked in load.acked.items()} for load in loads
    }


def check_promises(
    found: Mapping[Partition, list[Letter]], promises: Mapping[Load, Promises]
) -> int:
    """Nothing acknowledged is lost, nothing doubled or out of order, no offset is left out.

    Returns how many acknowledged records were looked for. What lies before the first record that
    is left, retention has taken.
    """
    for partition, letters in found.items():
        offsets = [letter.offset for letter in letters]
        assert offsets == list(range(_start(letters), _start(letters) + len(offsets))), (
            f"{partition} has holes"
        )
    for load, promised in promises.items():
        for partition in promised:
            _check_order(load, partition, found[partition])
    missing = lost(found, promises)
    assert not missing, f"{len(missing)} acknowledged records are lost: {missing[:3]}"
    return sum(len(acked) for promised in promises.values() for acked in promised.values())


def lost(
    found: Mapping[Partition, list[Letter]], promises: Mapping[Load, Promises]
) -> list[tuple[str, Partition, Acked]]:
    """What was promised and is not there, though retention has not taken it."""
    return [
        (load.name, partition, promise)
        for load, promised in promises.items()
        for partition, acked in promised.items()
        for promise in acked
        if not _is_kept(load, promise, found[partition])
    ]


def _is_kept(load: Load, promise: Acked, letters: Sequence[Letter]) -> bool:
    if promise.offset is None:
        numbers = [letter.number for letter in letters if letter.producer == load.name]
        is_before = not numbers or promise.number < numbers[0]
        return promise.number in numbers or (is_before and _start(letters) > 0)
    place = promise.offset - _start(letters)
    if place < 0:
        return True
    return place < len(letters) and letters[place] == Letter(
        promise.offset, load.name, promise.number
    )


def _start(letters: Sequence[Letter]) -> int:
    return letters[0].offset if letters else 0


def _check_order(load: Load, partition: Partition, letters: Sequence[Letter]) -> None:
    numbers = [letter.number for letter in letters if letter.producer == load.name]
    first = numbers[0] if numbers and _start(letters) else 0
    if not load.is_idempotent:
        # It may repeat itself, in order; and the first copy may lie before what was read.
        numbers = [number for number in dict.fromkeys(numbers) if number >= first]
    assert numbers == list(range(first, first + len(numbers))), (
        f"{load.name} on {partition}: {_around_the_gap(numbers)}"
    )


def _around_the_gap(numbers: list[int]) -> str:
    at = next(place for place, number in enumerate(numbers) if number != numbers[0] + place)
    return f"record {at} of {numbers[max(0, at - 3) : at + 3]}"


def _first(start: int, end: int, last: int | None) -> int:
    return OFFSET_BEGINNING if last is None else max(start, end - last)


def _end(consumer: Consumer, partition: Partition) -> tuple[int, int]:
    start, end = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=PATIENCE_S)
    return start, end


def letter_of(message: Message) -> Letter:
    key = message.key()
    assert isinstance(key, bytes)
    _, _, offset = position_of(message)
    return Letter(offset, key.decode(), _number(message))


def _number(message: Message) -> int:
    return int(value_of(message).split(b" ", 1)[0])
