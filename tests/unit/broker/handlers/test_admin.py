"""AdminQuery, as a broker alone answers it: pages of records that wait, and refusals."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.handled import Handled, handle
from fakes.waiting_log import record
from ottla.broker import waiting_listing
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.admin import AdminQueryRequest
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.records.batch import Record, build_batch
from ottla.records.compression import Codec
from ottla.replication.partition import ACKS_LEADER, LeaderPartition

HOUR_MS = 3_600_000
CANNOT_WAIT = "its records cannot wait: `ottla config set topic plain delay.enable=true` enables it"


async def ask(handled: Handled, name: str, body: bytes) -> tuple[int, str | None, bytes]:
    request = AdminQueryRequest(name=name, body=body)
    response = await handled.call(ApiKey.ADMIN_QUERY, request, 0)
    return response.error_code, response.error_message, response.body


async def waiting(handled: Handled, **wanted: Any) -> Any:
    body = json.dumps({"topic": "t", "partition": 0, **wanted}).encode()
    code, text, found = await ask(handled, "waiting.list", body)
    assert code == ErrorCode.NONE, text
    return json.loads(found)


async def all_pages(handled: Handled, **wanted: Any) -> tuple[list[Any], int]:
    """The rows of all pages, and how many pages there are."""
    rows, pages, after = [], 0, None
    while pages < 1000:
        found = await waiting(handled, after=after, **wanted)
        rows += found["rows"]
        after, pages = found["after"], pages + 1
        if after is None:
            break
    return rows, pages


async def led(handled: Handled) -> LeaderPartition:
    configs = [CreatableTopicConfig(name="delay.enable", value="true")]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    await handled.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]), 7)
    return handled.services.replicas.leaders[TopicPartition("t", 0)]


def send(handled: Handled, partition: LeaderPartition, sent: list[Record]) -> int:
    batch = build_batch(sent, codec=Codec.ZSTD)
    now_ms = handled.services.clock.now_ms()
    return partition.append(memoryview(batch), ACKS_LEADER, now_ms).base_offset


def key_of(number: int) -> bytes:
    return b"k%d" % (number % 7)


def test_pages_list_what_waits_by_due_time(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        partition = await led(handled)
        for first in range(0, 300, 50):
            send(
                handled,
                partition,
                [
                    record(b"v", key_of(number), delay_ms=HOUR_MS + number * 7919 % 300 * 1000)
                    for number in range(first, first + 50)
                ],
            )
        rows, pages = await all_pages(handled, limit=40)
        assert pages == 8
        assert [row["ticket"] for row in rows] == sorted(
            range(300), key=lambda number: (number * 7919 % 300, number)
        )
        assert [row["due_ms"] for row in rows] == sorted(row["due_ms"] for row in rows)
        assert {base64.b64decode(row["key"]) for row in rows} == {key_of(n) for n in range(7)}
        assert {row["schedule"] for row in rows} == {None}
        assert all(30 < row["size_bytes"] < 60 for row in rows)
        found = await waiting(handled, limit=0)
        assert (found["waiting"], found["schedules"], found["rows"]) == (300, 0, [])
        before_ms = rows[100]["due_ms"]
        assert await all_pages(handled, due_before_ms=before_ms) == (rows[:100], 1)

    handle(tmp_path, scenario)


def test_a_key_is_searched_in_the_order_of_tickets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_listing, "READS_MAX", 20)

    async def scenario(handled: Handled) -> None:
        partition = await led(handled)
        send(
            handled,
            partition,
            [record(b"v", key_of(number), delay_ms=HOUR_MS - number) for number in range(210)],
        )
        key = base64.b64encode(key_of(3)).decode()
        rows, pages = await all_pages(handled, key=key)
        assert [row["ticket"] for row in rows] == list(range(3, 210, 7))
        assert 10 <= pages <= 12, "a page reads twenty records"
        rows, _ = await all_pages(handled, key=key, limit=2)
        assert [row["ticket"] for row in rows] == list(range(3, 210, 7))
        rows, _ = await all_pages(handled, key=key, schedules_only=True)
        assert rows == []

    handle(tmp_path, scenario)


def test_large_keys_make_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_listing, "PAGE_BYTES", 10_000)

    async def scenario(handled: Handled) -> None:
        partition = await led(handled)
        large = [record(b"v", b"%04d" % number * 1000, delay_ms=HOUR_MS) for number in range(9)]
        send(handled, partition, large)
        rows, pages = await all_pages(handled)
        assert [row["ticket"] for row in rows] == list(range(9))
        assert pages == 5, "two to a page"

    handle(tmp_path, scenario)


def test_schedules_are_found_by_either_ticket_and_say_when_they_come(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        partition = await led(handled)
        send(handled, partition, [record(b"once", delay_ms=HOUR_MS)])
        cron = record(b"v", b"k", cron="0 6 * * *", timezone="Europe/Prague")
        ticket = send(handled, partition, [cron])
        rows, _ = await all_pages(handled, schedules_only=True)
        assert [(row["ticket"], row["schedule"]) for row in rows] == [(ticket, ticket)]
        assert (rows[0]["cron"], rows[0]["timezone"]) == ("0 6 * * *", "Europe/Prague")
        found = await waiting(handled, tickets=[ticket, 0, 99])
        assert [row["ticket"] for row in found["rows"]] == [ticket, 0]
        assert (found["waiting"], found["schedules"], found["after"]) == (2, 1, None)

    handle(tmp_path, scenario)


def test_refusals_say_what_is_wrong(tmp_path: Path) -> None:
    async def refused(handled: Handled, name: str, body: bytes) -> tuple[int, str | None]:
        code, text, found = await ask(handled, name, body)
        assert found == b""
        return code, text

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("plain")
        invalid = ErrorCode.INVALID_REQUEST
        for name, body, code, text in (
            ("what", b"{}", invalid, "unknown query 'what': known are waiting.list"),
            ("waiting.list", b"{", invalid, "the body of a query is not JSON"),
            ("waiting.list", b"[" * 60_000, invalid, "the body of a query is not JSON"),
            ("waiting.list", b"[]", invalid, "the body of a query is not a JSON object"),
            ("waiting.list", b" " * 65_537, invalid, "a query of 65537 bytes: 65536 are the most"),
            ("waiting.list", b"{}", invalid, "field 'topic' is not text"),
            (
                "waiting.list",
                b'{"topic": "plain", "partition": 0}',
                invalid,
                CANNOT_WAIT,
            ),
            (
                "waiting.list",
                b'{"topic": "none", "partition": 0}',
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "there is no partition none-0",
            ),
        ):
            assert await refused(handled, name, body) == (code, text)

    handle(tmp_path, scenario)


def test_a_leader_that_still_reads_its_log_says_so(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        partition = await led(handled)
        send(handled, partition, [record(delay_ms=HOUR_MS)])
        assert partition.waiting is not None
        partition.waiting.close()
        partition.waiting = handled.services.lead_waiting(partition)
        code, text, _ = await ask(handled, "waiting.list", b'{"topic": "t", "partition": 0}')
        assert code == ErrorCode.LEADER_NOT_AVAILABLE
        assert text == "t-0: what waits is being read, try again"

    handle(tmp_path, scenario)
