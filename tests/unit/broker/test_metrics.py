"""Metrics of a broker, and the pages that show them."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from fakes import build
from fakes.handled import Handled, handle
from ottla.broker.metrics import MetricsPages
from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.group_offsets import commit_offsets
from ottla.model import Endpoint, Offset, TopicPartition
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.telemetry import Metric, MetricKind, exposition

METRIC = Metric("ottla_test", MetricKind.GAUGE, "For a test.", (), [((), 1)])


def test_every_metric_has_one_name_a_text_and_labels_for_its_samples(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        metrics = list(handled.broker._collect())
        names = [metric.name for metric in metrics]
        assert len(set(names)) == len(names) > 30
        assert {"ottla_connections", "ottla_high_watermark", "ottla_groups"} <= set(names)
        for metric in metrics:
            assert metric.doc.endswith("."), metric.name

    handle(tmp_path, scenario)


class Used(NamedTuple):
    """A broker that a client uses, and its metrics page."""

    client: Connection
    handled: Handled

    def read(self) -> dict[str, float]:
        """Every sample of the page, by its name and labels."""
        metrics = self.handled.broker._collect()
        page = exposition(metrics).decode()
        lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
        return {name: float(number) for name, _, number in lines}

    async def produce(self, topic: str, count: int) -> int:
        """Send a batch of so many records; returns its size."""
        batch = build.batch(count)
        data = [PartitionProduceData(index=0, records=bytes(batch))]
        topics = [TopicProduceData(name=topic, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
        await self.client.send(request, ProduceResponse, version_max=9)
        return len(batch)

    async def fetch(self, topic: str) -> None:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[partition])]
        await self.client.send(FetchRequest(topics=topics), FetchResponse, version_max=12)


def use(tmp_path: Path, scenario: Callable[[Used], Awaitable[None]], **settings: str) -> None:
    async def main(handled: Handled) -> None:
        client = await Connection.open(handled.broker.address)
        try:
            await scenario(Used(client, handled))
        finally:
            client.close()

    handle(tmp_path, main, **settings)


def test_bytes_batches_and_records_are_counted_by_topic(tmp_path: Path) -> None:
    async def scenario(used: Used) -> None:
        await used.handled.create_topic("orders")
        await used.handled.create_topic("clicks")
        size = await used.produce("orders", 3) + await used.produce("orders", 2)
        other = await used.produce("clicks", 1)
        await used.fetch("orders")
        page = used.read()
        assert page['ottla_topic_produce_bytes_total{topic="orders"}'] == size
        assert page['ottla_topic_produce_batches_total{topic="orders"}'] == 2
        assert page['ottla_topic_produce_records_total{topic="orders"}'] == 5
        assert page['ottla_topic_produce_records_total{topic="clicks"}'] == 1
        assert page["ottla_produce_bytes_total"] == size + other
        assert page['ottla_topic_fetch_bytes_total{topic="orders"}'] == size
        assert 'ottla_topic_fetch_bytes_total{topic="clicks"}' not in page
        assert page["ottla_fetch_bytes_total"] == size

    use(tmp_path, scenario)


def test_requests_and_syncs_are_timed(tmp_path: Path) -> None:
    async def scenario(used: Used) -> None:
        await used.handled.create_topic("orders")
        await used.produce("orders", 1)  # which waits for the disk
        await used.fetch("orders")
        await used.fetch("orders")
        async with Client([used.handled.broker.address]) as client:
            await commit_offsets(client, "any", {TopicPartition("orders", 0): Offset(1)})
        page = used.read()
        counts = {
            api: page[f'ottla_request_duration_seconds_count{{api="{api}"}}']
            for api in ("produce", "fetch", "offset_commit")
        }
        assert counts == {"produce": 1, "fetch": 2, "offset_commit": 1}
        assert page["ottla_fsync_duration_seconds_count"] >= 2, "a batch, and a commit"
        assert page["ottla_fsync_duration_seconds_sum"] > 0

    use(tmp_path, scenario)


def test_errors_are_counted_by_api_and_code(tmp_path: Path) -> None:
    async def scenario(used: Used) -> None:
        await used.produce("missing", 1)
        for _ in range(2):
            await used.fetch("missing")
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        await used.handled.find_coordinators()
        await used.client.send(heartbeat, HeartbeatResponse)
        page = used.read()
        errors = {name: number for name, number in page.items() if "response_errors" in name}
        unknown = 'error="UNKNOWN_TOPIC_OR_PARTITION"'
        assert errors == {
            f'ottla_response_errors_total{{api="produce",{unknown}}}': 1,
            f'ottla_response_errors_total{{api="fetch",{unknown}}}': 2,
            'ottla_response_errors_total{api="heartbeat",error="UNKNOWN_MEMBER_ID"}': 1,
        }

    use(tmp_path, scenario)


def partitions(page: dict[str, float], topic: str) -> set[str]:
    """The partitions of a topic that the page names."""
    found = re.findall(rf'partition="(\w+)",topic="{topic}"', " ".join(page))
    return set(found)


@pytest.mark.parametrize(("enable", "seen"), [("false", {"all"}), ("true", {"0", "1", "2"})])
def test_partitions_of_internal_topics_are_one_unless_they_are_asked_for(
    enable: str, seen: set[str], tmp_path: Path
) -> None:
    async def scenario(used: Used) -> None:
        await used.handled.find_coordinators()
        await used.handled.create_topic("orders", partitions=2)
        async with Client([used.handled.broker.address]) as client:
            for group in ("a", "b", "c"):  # in different partitions
                await commit_offsets(client, group, {TopicPartition("orders", 0): Offset(0)})
        page = used.read()
        assert partitions(page, "__consumer_offsets") == seen
        assert partitions(page, "orders") == {"0", "1"}
        ends = [
            number
            for name, number in page.items()
            if name.startswith("ottla_log_end_offset") and "__consumer_offsets" in name
        ]
        assert len(ends) == len(seen)
        assert sum(ends) == 3, "three commits"

    settings = {"metrics_internal_partitions_enable": enable, "offsets_topic_num_partitions": "3"}
    use(tmp_path, scenario, **settings)


async def get(path: str, obstacle: str | None = None) -> tuple[str, str]:
    """Status line and body of a page."""

    def collect() -> Iterable[Metric]:
        return [METRIC]

    pages = MetricsPages(collect, lambda: obstacle, lambda task: None)
    endpoint = await pages.listen(Endpoint("127.0.0.1", 0))
    try:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(30):
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    finally:
        await pages.close()
    return head.splitlines()[0], body


@pytest.mark.parametrize(
    ("path", "obstacle", "status", "text"),
    [
        ("/metrics", None, "200 OK", "ottla_test 1"),
        ("/healthz", "broken", "200 OK", "alive\n"),
        ("/readyz", None, "200 OK", "ready\n"),
        ("/readyz", "two\nlines", "503 Service Unavailable", "not ready: two lines\n"),
        ("/other", None, "404 Not Found", "/metrics, /healthz, /readyz\n"),
    ],
)
def test_a_page_has_a_status_and_one_line(
    path: str, obstacle: str | None, status: str, text: str
) -> None:
    line, body = asyncio.run(get(path, obstacle))
    assert line == f"HTTP/1.1 {status}"
    assert text in body
