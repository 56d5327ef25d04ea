"""Metrics of a broker, and the pages that show them."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.broker.metrics import MetricsPages
from ottla.model import Endpoint
from ottla.telemetry import Metric, MetricKind

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
