"""Ottla understands the files that a broker of Apache Kafka wrote."""

import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.processes import COMMAND
from compat import letters
from compat.apache import ApacheBroker
from compat.letters import CODECS, Letter
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka")]

TRANSACTIONS = "transactions"
TOPICS = (*CODECS, TRANSACTIONS)


@pytest.fixture(scope="module", params=["SIGTERM", "SIGKILL"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker of Apache Kafka that has ended, with a topic for every codec."""
    with ApacheBroker(tmp_path_factory.mktemp("written") / "broker") as broker:
        for codec in CODECS:
            letters.create_topic(broker.address, codec)
            letters.send(broker.address, codec, codec, list(letters.letters(codec)))
        letters.create_topic(broker.address, TRANSACTIONS)
        letters.send_in_transactions(
            broker.address, TRANSACTIONS, "lz4", list(letters.letters(TRANSACTIONS))
        )
        # Apache Kafka answers a commit before its marker is written.
        letters.read_all(broker.address, TRANSACTIONS, count_min=letters.COUNT)
        broker.end(signal.Signals[request.param])
    return broker.data


def run_ottla(*arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("topic", TOPICS)
def test_ottla_log_dump_shows_every_record(written: Path, topic: str) -> None:
    text = run_ottla("log", "dump", str(written / f"{topic}-0"), "--records", "--json")
    batches = [json.loads(line) for line in text.splitlines()]
    codec = "lz4" if topic == TRANSACTIONS else topic
    assert {b["codec"] for b in batches if not b["control"]} == {codec}
    assert all(b["sound"] for b in batches)
    found = [dumped(r) for b in batches if not b["control"] for r in b["records"]]
    assert [one for one in found if one.key != letters.ABORTED] == list(letters.letters(topic))


def dumped(record: dict[str, object]) -> Letter:
    def content(name: str) -> bytes:
        if f"{name}_base64" in record:
            return base64.b64decode(str(record[f"{name}_base64"]))
        return str(record[name]).encode()

    timestamp = record["timestamp"]
    assert isinstance(timestamp, int)
    return Letter(content("key"), content("value"), timestamp)


@pytest.mark.parametrize("topic", TOPICS)
def test_ottla_log_verify_finds_nothing_wrong(written: Path, topic: str) -> None:
    assert "all sound" in run_ottla("log", "verify", str(written / f"{topic}-0"))


@pytest.fixture(scope="module", params=["SIGTERM", "SIGKILL"])
def adopting(
    request: pytest.FixtureRequest, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OttlaBroker]:
    """An Ottla broker whose partitions were replaced with Apache's while it was down.

    After SIGTERM it takes the files as they are; after SIGKILL it looks at every batch.
    """
    with OttlaBroker(tmp_path_factory.mktemp("adopting") / "data") as broker:
        for topic in TOPICS:
            letters.create_topic(broker.address, topic)
        broker.end(signal.Signals[request.param])
        for topic in TOPICS:
            letters.adopt(written / f"{topic}-0", broker.data / f"{topic}-0")
        broker.start()
        yield broker
        broker.end(signal.SIGTERM)


@pytest.mark.parametrize("topic", TOPICS)
def test_an_ottla_broker_goes_on_where_apache_kafka_ended(
    adopting: OttlaBroker, topic: str
) -> None:
    sent = list(letters.letters(topic))
    assert letters.read_all(adopting.address, topic) == sent
    letters.send(adopting.address, topic, "zstd", sent[:100], plainly=True)
    assert letters.read_all(adopting.address, topic) == [*sent, *sent[:100]]


def test_aborted_records_are_there_for_those_who_want_them(adopting: OttlaBroker) -> None:
    found = letters.read_all(adopting.address, TRANSACTIONS, isolation="read_uncommitted")
    assert sum(one.key == letters.ABORTED for one in found) == letters.COUNT // 50 * 3
