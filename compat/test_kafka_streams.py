"""Kafka Streams with exactly_once_v2, through kills of the program and of the broker.

A count by key over a repartition topic and a store: each count must come exactly once.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from compat import records
from compat.java_process import JavaProcess
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka"), pytest.mark.timeout(900)]

PARTITIONS: Final = 2
KEYS: Final = 7
COUNT: Final = 2000
STEP: Final = COUNT // 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    with OttlaBroker(tmp_path / "data") as broker:
        records.create_topics(broker.address, PARTITIONS, "lines", "counts")
        yield broker
        broker.end(signal.SIGTERM)


def program(broker: OttlaBroker, directory: Path) -> JavaProcess:
    arguments = (broker.address, "counter", "lines", "counts", str(directory / "state"))
    return JavaProcess(directory / "streams", "ottla.compat.WordCount", *arguments)


def send_numbers(broker: OttlaBroker, first: int) -> None:
    numbers = range(first, first + STEP)
    records.send(broker.address, "lines", [(None, f"key-{one % KEYS}") for one in numbers])


def counted(found: list[tuple[str, str]]) -> int:
    """How many of the source's records the counts have seen."""
    last: dict[str, int] = {}
    for key, count in found:
        last[key] = int(count)
    return sum(last.values())


def read_counts(broker: OttlaBroker, counter: JavaProcess, upto: int) -> list[tuple[str, str]]:
    return records.read_until(
        broker.address,
        "counts",
        PARTITIONS,
        lambda found: counted(found) >= upto,
        counter.assert_alive,
    )


def assert_each_count_once(found: list[tuple[str, str]], upto: int) -> None:
    """A store that lost or repeated a record would skip or repeat a count, or count backwards."""
    assert counted(found) == upto
    for key in {key for key, _ in found}:
        counts = [int(count) for of, count in found if of == key]
        assert counts == sorted(set(counts)), f"{key}: {counts}"


def test_counts_are_exact_through_kills_of_the_program(broker: OttlaBroker, tmp_path: Path) -> None:
    with program(broker, tmp_path) as counter:
        for first in range(0, COUNT, STEP):
            send_numbers(broker, first)
            # Killed in the midst of its work on what was just sent.
            read_counts(broker, counter, first + STEP // 4)
            counter.kill()
            counter.start()
        assert_each_count_once(read_counts(broker, counter, COUNT), COUNT)
        counter.stop()


def test_counts_are_exact_through_kills_of_the_broker(broker: OttlaBroker, tmp_path: Path) -> None:
    with program(broker, tmp_path) as counter:
        for number, first in enumerate(range(0, COUNT, STEP)):
            send_numbers(broker, first)
            read_counts(broker, counter, first + STEP // 4)
            broker.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
            broker.start()
        assert_each_count_once(read_counts(broker, counter, COUNT), COUNT)
        counter.stop()
