"""The wall clock of a running broker is set by an hour, again and again: nothing comes early."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from random import Random
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from crash import stepped_clock
from crash.load import SILENT, STEADY
from crash.processes import BrokerProcess
from crash.stepped_clock import SteppedClock
from crash.topics import PATIENCE_S, admin_of, create_topics

_STEPS: Final = int(os.environ.get("OTTLA_CLOCK_STEPS", "6"))
_HOUR_MS: Final = 3_600_000
# Ahead and back; back and corrected; back further, from a time that was ahead.
_FIRST_STEPS: Final = (1, -1, -1, 1, 1, -1)
_RECORDS: Final = 12  # of each kind, before a step and after it
_DELAYS_MS: Final = range(50, 700)
_EARLY_S_MAX: Final = 0.050
_TOPIC: Final = "reminders"
# Clients keep the right time: to a broker whose clock is hours behind, records are of the future.
_CONFIG: Final = {"delay.enable": "true", "message.timestamp.after.max.ms": str(10**12)}


@dataclass(slots=True)
class Reminders:
    """Records that were sent to wait, and those that came, by the monotonic clock of the test."""

    address: str
    due_s: dict[str, float] = field(default_factory=dict)
    came_s: dict[str, list[float]] = field(default_factory=dict)
    failed: list[KafkaError] = field(default_factory=list)
    producer: Producer = field(init=False)
    consumer: Consumer = field(init=False)

    def __post_init__(self) -> None:
        common = {"bootstrap.servers": self.address, "logger": SILENT, **STEADY}
        self.producer = Producer({**common, "enable.idempotence": True, "linger.ms": 0})
        self.consumer = Consumer({**common, "group.id": "g", "enable.auto.commit": False})
        self.consumer.assign([TopicPartition(_TOPIC, 0, 0)])

    def send(self, rng: Random) -> set[str]:
        """Have some accepted that are due after a delay, and some at a time; returns the former."""
        sent = set[str]()
        for number in range(2 * _RECORDS):
            delay_ms = rng.choice(_DELAYS_MS)
            name, number_ms = "ottla.delay-ms", delay_ms
            if number % 2:
                name, number_ms = "ottla.deliver-at", time.time_ns() // 1_000_000 + delay_ms
            value = str(len(self.due_s))
            self.due_s[value] = time.monotonic() + delay_ms / 1000
            if not number % 2:
                sent.add(value)
            headers: list[tuple[str, str | bytes | None]] = [(name, str(number_ms))]
            self.producer.produce(_TOPIC, value, headers=headers, on_delivery=self._note_sent)
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0
        assert not self.failed
        return sent

    def _note_sent(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed.append(error)

    def read_until(self, wanted: set[str]) -> None:
        """Read until all of these have come."""
        deadline_s = time.monotonic() + PATIENCE_S
        while missing := wanted - self.came_s.keys():
            assert time.monotonic() < deadline_s, f"{sorted(missing)} of {len(wanted)} did not come"
            message = self.consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                value = (message.value() or b"").decode()
                self.came_s.setdefault(value, []).append(time.monotonic())

    def early_s(self) -> list[float]:
        """How much too early each came; less than 0 for those that came late."""
        return [
            self.due_s[value] - at_s for value, times_s in self.came_s.items() for at_s in times_s
        ]


@contextmanager
def _serving(directory: Path, control: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory / "data", log_file=directory / "broker.log")
    broker.command = [sys.executable, stepped_clock.__file__, str(control)]
    try:
        broker.start()
        yield broker
    except BaseException:
        sys.stdout.write(broker.said())
        raise
    finally:
        broker.end()


def _steps(rng: Random) -> list[int]:
    drawn = (rng.choice((-1, 1)) for _ in repeat(None))
    return list(islice(chain(_FIRST_STEPS, drawn), _STEPS))


@pytest.mark.slow
def test_no_step_of_the_clock_makes_a_record_come_early(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    """A delay that begins after a step lasts as long as it says, whatever the clock says.

    What waits while the clock is set back comes late: here when the broker is started again, with
    a clock that is right.
    """
    clock = SteppedClock(tmp_path / "clock")
    hours = lowest = 0
    with _serving(tmp_path, tmp_path / "clock") as broker:
        create_topics(admin_of(broker.address), {_TOPIC: _CONFIG})
        reminders = Reminders(broker.address)
        for step in _steps(rng):
            before = reminders.send(rng)
            hours += step
            clock.set(hours * _HOUR_MS)
            after = reminders.send(rng)
            is_set_back = hours < lowest
            lowest = min(lowest, hours)
            reminders.read_until(after if is_set_back else after | before)
        came_before = len(reminders.came_s)
        clock.set(0)
        assert broker.stop() == 0
        broker.start()
        reminders.read_until(set(reminders.due_s))
        reminders.send(rng)  # behind these a copy too many would be found
        reminders.read_until(set(reminders.due_s))
        reminders.consumer.close()
    assert Counter(map(len, reminders.came_s.values())) == {1: len(reminders.due_s)}
    assert came_before < len(reminders.due_s), "some were held up by a clock that was set back"
    earliest_s = max(reminders.early_s())
    assert earliest_s <= _EARLY_S_MAX
    report(
        f"{_STEPS} steps of an hour: {len(reminders.due_s)} records came once, none before"
        f" {-earliest_s * 1000:.0f} ms after its time; {came_before} came between the steps"
    )
