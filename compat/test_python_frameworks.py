"""FastStream, Quix Streams (exactly-once, with a store) and Celery (kombu's Kafka transport)."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from compat import records
from compat.ottla_broker import OttlaBroker
from compat.peers import HERE, python_of

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

COUNT: Final = 100
_PROGRAM_S: Final = 240


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    with OttlaBroker(tmp_path / "data") as broker:
        yield broker
        broker.end(signal.SIGTERM)


def run(name: str, peer: str, *arguments: str) -> None:
    """The program of a framework, with the interpreter that has the framework."""
    program = str(HERE / "frameworks" / f"{name}_program.py")
    done = subprocess.run(
        [str(python_of(peer)), program, *arguments],
        capture_output=True,
        text=True,
        timeout=_PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


@pytest.mark.needs("faststream")
def test_faststream_answers_each_record(broker: OttlaBroker) -> None:
    records.create_topics(broker.address, 2, "questions", "answers")
    numbers = range(COUNT)
    records.send(broker.address, "questions", [(None, str(number)) for number in numbers])
    run("faststream", "faststream", broker.address, "questions", "answers", str(COUNT))
    found = records.read_until(broker.address, "answers", 2, lambda found: len(found) >= COUNT)
    assert sorted(int(value) for _, value in found) == [number * 2 for number in numbers]


@pytest.mark.needs("quixstreams")
def test_quix_streams_sums_exactly_once(broker: OttlaBroker, tmp_path: Path) -> None:
    records.create_topics(broker.address, 2, "numbers", "sums")
    state = str(tmp_path / "state")
    for half in range(2):  # the second run goes on with the sums of the first
        numbers = range(half * COUNT, (half + 1) * COUNT)
        sent = [(f"key-{number % 3}", str(number)) for number in numbers]
        records.send(broker.address, "numbers", sent)
        run("quix", "quixstreams", broker.address, "numbers", "sums", str(COUNT), state)
    found = records.read_until(broker.address, "sums", 2, lambda found: len(found) >= 2 * COUNT)
    last = {key: int(value) for key, value in found}
    expected = {f"key-{one}": sum(range(one, 2 * COUNT, 3)) for one in range(3)}
    assert (len(found), last) == (2 * COUNT, expected)


@pytest.mark.needs("celery")
def test_celery_carries_out_each_task(broker: OttlaBroker, tmp_path: Path) -> None:
    done = tmp_path / "done.txt"
    run("celery", "celery", broker.address, str(COUNT), str(done))
    assert sorted(map(int, done.read_text().split())) == list(range(COUNT))
