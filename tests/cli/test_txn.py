"""`ottla txn` against a real broker and a real transactional producer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import confluent_kafka
import pytest

from cli.processes import Ottla, RunningBroker

PATIENCE_S = 30

_numbers = count(1)


@contextmanager
def open_transaction(
    broker: RunningBroker, topic: str
) -> Iterator[tuple[str, confluent_kafka.Producer]]:
    """A producer in the middle of a transaction that has written to `topic`."""
    name = f"txn-{next(_numbers)}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"held back", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    yield name, producer
    producer.purge()


def test_an_open_transaction_is_listed_described_and_aborted(
    ottla: Ottla, broker: RunningBroker
) -> None:
    ottla("topic", "create", "txn-life")
    with open_transaction(broker, "txn-life") as (name, producer):
        listed = ottla("txn", "list", "--state", "Ongoing", "--match", name, "--json")
        assert listed.returncode == 0
        found = json.loads(listed.stdout)
        assert (found["transactional_id"], found["state"]) == (name, "Ongoing")

        described = ottla("txn", "describe", name, "--json")
        about = json.loads(described.stdout)
        assert about["producer_id"] == found["producer_id"]
        assert about["partitions"] == [{"topic": "txn-life", "partition": 0}]
        assert about["timeout_ms"] == 60_000
        assert about["started_ms"] > 0
        lines = ottla("txn", "describe", name).stdout.splitlines()
        assert lines[0].startswith(f"{name}  Ongoing  producer {found['producer_id']} epoch ")
        assert lines[1:] == ["  txn-life-0"]

        aborted = ottla("txn", "abort", name)
        assert (aborted.returncode, aborted.stdout) == (0, "")
        assert aborted.stderr == f"{name}: no transaction is open; its producer is fenced\n"
        assert json.loads(ottla("txn", "describe", name, "--json").stdout)["state"] == "Empty"
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(PATIENCE_S)


def test_a_partition_is_freed_of_a_transaction(ottla: Ottla, broker: RunningBroker) -> None:
    ottla("topic", "create", "txn-stuck")
    with open_transaction(broker, "txn-stuck") as (name, _):
        ottla("produce", "txn-stuck", stdin="behind it\n")
        producer_id = json.loads(ottla("txn", "describe", name, "--json").stdout)["producer_id"]
        place = ("--partition", "txn-stuck:0")
        wrong = ottla("txn", "abort", *place, "--producer", "999999")
        assert wrong.returncode == 1
        assert wrong.stderr == (
            "ottla: producer 999999 has no open transaction in txn-stuck-0;"
            f" open are producer {producer_id} since offset 0\n"
        )
        done = ottla("txn", "abort", *place, "--producer", str(producer_id), "--yes")
        assert (done.returncode, done.stderr) == (0, "transaction aborted in txn-stuck-0\n")
        again = ottla("txn", "abort", *place, "--producer", str(producer_id))
        assert again.returncode == 1
        assert "no producer has" in again.stderr


def test_people_get_a_table(ottla: Ottla, broker: RunningBroker) -> None:
    ottla("topic", "create", "txn-table")
    with open_transaction(broker, "txn-table") as (name, _):
        heading, *rows = ottla("txn", "list").stdout.splitlines()
        assert heading.split() == ["TRANSACTIONAL-ID", "PRODUCER", "STATE"]
        assert [name, "Ongoing"] in [[row.split()[0], row.split()[2]] for row in rows]
        assert ottla("txn", "list", "--open-for-ms", "600000", "--json").stdout == ""


def test_what_is_not_there_is_one_line(ottla: Ottla) -> None:
    refused = [
        ottla("txn", "describe", "nobody-has-this"),
        ottla("txn", "abort", "nobody-has-this"),
        ottla("txn", "abort", "--partition", "no-such-topic:0", "--producer", "1"),
        ottla("txn", "list", "--state", "Asleep"),
        ottla("txn", "list", "--match", "("),
    ]
    assert [answer.returncode for answer in refused] == [1, 1, 1, 1, 2]
    for answer in refused:
        assert answer.stdout == ""
        assert answer.stderr.startswith("ottla: ")
        assert answer.stderr.count("\n") == 1, answer.stderr
    assert "Asleep" in refused[3].stderr


def test_nonsense_never_reaches_the_broker(ottla: Ottla) -> None:
    for arguments in (
        ["abort"],
        ["abort", "billing", "--partition", "t:0", "--producer", "1"],
        ["abort", "--partition", "t:0"],
        ["abort", "--producer", "1"],
        ["abort", "--partition", "t", "--producer", "1"],
        ["describe"],
    ):
        answer = ottla("txn", *arguments)
        assert answer.returncode == 2, answer
        assert answer.stderr.count("\n") == 1


def test_help_says_what_can_be_said(ottla: Ottla) -> None:
    assert "txn" in ottla("--help").stdout
    for command in ("list", "describe", "abort"):
        shown = ottla("txn", command, "--help")
        assert shown.returncode == 0
        assert "Examples:" in shown.stdout
