"""`ottla dlq` against a real broker, with records that a real consumer has rejected."""

import asyncio
import json
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from cli.processes import Ottla, RunningBroker, wait_until
from ottla.client import dead_letters
from ottla.client.client import Client
from ottla.client.dead_letters import DeadLetterChoice, read_dead_letters, redrive
from ottla.client.transactional_producer import TransactionalProducer
from ottla.model import Endpoint, TimestampMs, TopicPartition
from ottla.records.batch import HEADER_BYTES, pack
from ottla.records.dead_letter_headers import redrive_note, redriven

NUMBERS = 6


def consume(
    broker: RunningBroker, topic: str, total: int, kind: AcknowledgeType, group: str = ""
) -> list[Any]:
    """Acknowledge so many records of a topic; returns their values and headers."""
    member = ShareConsumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group or topic,
            "share.acknowledgement.mode": "explicit",
        }
    )
    member.subscribe([topic])
    found: list[Any] = []

    def has_all() -> bool:
        for message in member.poll(0.5):
            assert message.error() is None
            found.append((message.value(), dict(message.headers() or [])))
            member.acknowledge(message, kind)
        member.commit_sync(30.0)
        return len(found) >= total

    wait_until(has_all, f"{total} records are delivered")
    member.close()
    return found


def rows(ottla: Ottla, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ottla("dlq", *words, "--json").stdout.splitlines()]


@pytest.fixture
def topic(ottla: Ottla, broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A topic whose records 0 to 5, with keys, were rejected."""
    name: str = request.node.name.removeprefix("test_")[:60]
    ottla("topic", "create", name)
    ottla("topic", "create", f"dlq.{name}", "--config", "errors.deadletterqueue.group.enable=true")
    ottla("produce", name, "--key-separator", "=", stdin="k0=0\nk1=1\nk0=2\nk1=3\nk0=4\nk1=5\n")
    for group in (name, f"other-{name}"):
        ottla("config", "set", "group", group, "share.auto.offset.reset=earliest")
    ottla("config", "set", "group", name, f"errors.deadletterqueue.topic.name=dlq.{name}")
    consume(broker, name, NUMBERS, AcknowledgeType.REJECT)
    wait_until(lambda: len(rows(ottla, "show", f"dlq.{name}")) == NUMBERS, "all are dead")
    return name


def test_dead_letters_are_listed_and_shown(ottla: Ottla, topic: str) -> None:
    (listed,) = [row for row in rows(ottla, "list") if row["topic"] == f"dlq.{topic}"]
    assert (listed["waiting"], listed["redriven"]) == (NUMBERS, 0)
    assert listed["groups"] == [{"group": topic, "cause": "rejected", "waiting": NUMBERS}]
    shown = rows(ottla, "show", f"dlq.{topic}", "--key", "k1", "--max", "2")
    assert [(row["value"], row["source_offset"], row["deliveries"]) for row in shown] == [
        ("1", 1, 1),
        ("3", 3, 1),
    ]
    assert {row["source_topic"] for row in shown} == {topic}
    assert rows(ottla, "show", f"dlq.{topic}", "--cause", "delivery-limit") == []
    assert rows(ottla, "show", f"dlq.{topic}", "--until", "-1h") == []
    text = ottla("dlq", "show", f"dlq.{topic}").stdout
    assert f"{topic}-0@5" in text
    assert f"dlq.{topic}" in ottla("dlq", "list").stdout


def test_records_go_back_once_and_for_their_group_alone(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    assert rows(ottla, "redrive", f"dlq.{topic}", "--key", "k0", "--max", "2") == [
        {
            "topic": f"dlq.{topic}",
            "redriven": 2,
            "without_copy": 0,
            "without_topic": 0,
            "too_large": 0,
        }
    ]
    assert rows(ottla, "redrive", f"dlq.{topic}", "--since", "-1h")[0]["redriven"] == 4
    assert rows(ottla, "redrive", f"dlq.{topic}")[0]["redriven"] == 0
    assert rows(ottla, "show", f"dlq.{topic}") == []
    assert len(rows(ottla, "show", f"dlq.{topic}", "--redriven")) == NUMBERS
    again = consume(broker, topic, NUMBERS, AcknowledgeType.REJECT)
    assert [value for value, _ in again] == [b"0", b"2", b"1", b"3", b"4", b"5"]
    history = again[0][1]["ottla.dlq.history"].decode()
    assert f"rejected group={topic} {topic}-0@0 deliveries=1" in history
    ottla("produce", topic, stdin="last\n")
    others = consume(broker, topic, NUMBERS + 1, AcknowledgeType.ACCEPT, group=f"other-{topic}")
    assert [value for value, _ in others] == [b"0", b"1", b"2", b"3", b"4", b"5", b"last"]
    wait_until(lambda: len(rows(ottla, "show", f"dlq.{topic}")) == NUMBERS, "all died again")
    (first, *_) = rows(ottla, "show", f"dlq.{topic}", "--key", "k0")
    assert len(first["history"]) == 1, "the death before this one"


def test_more_than_a_topic_takes_in_one_batch_goes_back_in_several(
    ottla: Ottla, broker: RunningBroker
) -> None:
    for name, settings in (
        ("deep", ["max.message.bytes=1500"]),
        ("dlq.deep", ["errors.deadletterqueue.group.enable=true"]),
    ):
        ottla("topic", "create", name, *(word for one in settings for word in ("--config", one)))
    ottla("config", "set", "group", "deep", "share.auto.offset.reset=earliest")
    ottla("config", "set", "group", "deep", "errors.deadletterqueue.topic.name=dlq.deep")
    sent = [f"{number}".ljust(900, ".") for number in range(5)]
    for value in sent:
        ottla("produce", "deep", stdin=f"{value}\n")
    consume(broker, "deep", len(sent), AcknowledgeType.REJECT)
    wait_until(lambda: len(rows(ottla, "show", "dlq.deep")) == len(sent), "all are dead")
    assert rows(ottla, "redrive", "dlq.deep")[0]["redriven"] == len(sent)
    again = consume(broker, "deep", len(sent), AcknowledgeType.ACCEPT)
    assert [value.decode() for value, _ in again] == sent


def put_dead_letter(ottla: Ottla, topic: str, key: str, offset: str, value: str) -> None:
    """Write a dead letter of a topic by hand."""
    named = {"topic": topic, "partition": "0", "group": topic, "offset": offset}
    headers = [f"--header=__dlq.errors.{name}={text}" for name, text in named.items()]
    ottla("produce", f"dlq.{topic}", "--key-separator", "=", *headers, stdin=f"{key}={value}\n")


async def size_of_redriven(address: str, topic: str, key: bytes) -> int:
    """The size of the batch in which a dead letter goes back alone."""
    async with Client([Endpoint.parse(address)], client_id="measuring") as client:
        tp = TopicPartition(f"dlq.{topic}", 0)
        dead = [one async for one in read_dead_letters(client, [tp]) if one.record.key == key]
        return HEADER_BYTES + len(pack([redriven(dead[0].record, TimestampMs(1))]).payload)


def test_what_its_topic_takes_no_more_is_said_and_the_others_go_back(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    put_dead_letter(ottla, topic, "large", "7", "a" * 3000)
    put_dead_letter(ottla, topic, "small", "8", "a")
    size_bytes = asyncio.run(size_of_redriven(broker.address, topic, b"large"))
    ottla("config", "set", "topic", topic, f"max.message.bytes={size_bytes - 1}")
    done = ottla("dlq", "redrive", f"dlq.{topic}", "--json")
    counts = json.loads(done.stdout)
    assert (done.returncode, counts["redriven"], counts["too_large"]) == (1, NUMBERS + 1, 1)
    assert "1 dead letter of records larger than max.message.bytes" in done.stderr
    ottla("config", "set", "topic", topic, f"max.message.bytes={size_bytes}")
    assert rows(ottla, "redrive", f"dlq.{topic}")[0]["redriven"] == 1


def test_what_only_looks_like_a_dead_letter_is_passed_over(ottla: Ottla, topic: str) -> None:
    put_dead_letter(ottla, topic, "odd", "9" * 5000, "a")
    put_dead_letter(ottla, topic, "last", "9" * 18, "a")
    shown = rows(ottla, "show", f"dlq.{topic}")
    assert {row["key"] for row in shown} == {"k0", "k1", "last"}


def test_a_limit_counts_over_all_transactions_of_a_redrive(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_TRANSACTION_RECORDS", 2)

    async def redrive_three() -> int:
        async with Client([Endpoint.parse(broker.address)], client_id="limited") as client:
            choice = DeadLetterChoice(count_max=3)
            return (await redrive(client, f"dlq.{topic}", choice, lambda: TimestampMs(1))).count

    assert [asyncio.run(redrive_three()) for _ in range(3)] == [3, 3, 0]


async def begin_redrive(address: str, topic: str) -> None:
    """A redrive that dies before it commits: two records are in their topic already."""
    tp = TopicPartition(f"dlq.{topic}", 0)
    async with Client([Endpoint.parse(address)], client_id="dying") as client:
        producer = await TransactionalProducer.open(client, f"ottla-dlq-redrive-{tp}")
        dead = [one async for one in read_dead_letters(client, [tp])][:2]
        back = [redriven(one.record, TimestampMs(1)) for one in dead]
        await producer.write_packed(TopicPartition(topic, 0), pack(back))
        notes = [redrive_note(one.offset, TimestampMs(1)) for one in dead]
        await producer.write_packed(tp, pack(notes))


def test_what_a_redrive_that_died_had_sent_is_not_delivered(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    asyncio.run(begin_redrive(broker.address, topic))
    assert rows(ottla, "redrive", f"dlq.{topic}")[0]["redriven"] == NUMBERS
    ottla("produce", topic, stdin="last\n")
    found = consume(broker, topic, NUMBERS + 1, AcknowledgeType.ACCEPT)
    assert [value for value, _ in found] == [b"0", b"1", b"2", b"3", b"4", b"5", b"last"]


def test_dead_letters_are_purged(ottla: Ottla, topic: str) -> None:
    ottla("dlq", "purge", f"dlq.{topic}", "--before", "-1h", "--yes")
    assert len(rows(ottla, "show", f"dlq.{topic}")) == NUMBERS
    (purged,) = rows(ottla, "purge", f"dlq.{topic}", "--yes")
    assert purged["start_offset"] == purged["end_offset"] >= NUMBERS
    assert rows(ottla, "show", f"dlq.{topic}") == []


def test_what_cannot_go_back_is_said(ottla: Ottla, topic: str) -> None:
    ottla("topic", "delete", topic, "--yes")
    done = ottla("dlq", "redrive", f"dlq.{topic}", "--yes")
    assert done.returncode == 1
    assert "6 dead letters of topics or partitions that do not exist" in done.stderr
    done = ottla("dlq", "redrive", "missing", "--yes")
    assert (done.returncode, "missing" in done.stderr) == (1, True)
    ottla("topic", "create", f"plain-{topic}")
    done = ottla("dlq", "purge", f"plain-{topic}", "--yes")
    assert done.returncode == 1
    assert "takes no dead letters" in done.stderr
    for words in (["--cause", "age"], ["--since", "42"], ["--max", "0"]):
        assert ottla("dlq", "redrive", f"dlq.{topic}", *words).returncode == 2
