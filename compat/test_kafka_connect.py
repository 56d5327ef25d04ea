"""Kafka Connect with an exactly-once source, through kills of its worker and of the broker.

The lines of a file, by Kafka's FileStreamSource: each must be in the topic once, in order.
"""

import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from cli.processes import wait_until
from compat import records
from compat.apache import free_port
from compat.java_process import JavaProcess
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka"), pytest.mark.timeout(900)]

KILLS: Final = 4
STEP: Final = 200  # lines between two kills
_LINES_AT_ONCE: Final = 5
_PAUSE_S: Final = 0.02
_SETTINGS: Final = """\
bootstrap.servers={address}
group.id=workers
listeners=http://127.0.0.1:{port}
exactly.once.source.support=enabled
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
config.storage.topic=connect-configs
status.storage.topic=connect-status
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=3
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
offset.flush.interval.ms=500
plugin.discovery=only_scan
"""


class Worker(JavaProcess):
    """A worker of Connect, and its REST interface."""

    def __init__(self, directory: Path, broker: OttlaBroker) -> None:
        directory.mkdir()
        self._port = free_port()
        settings = directory / "worker.properties"
        settings.write_text(_SETTINGS.format(address=broker.address, port=self._port))
        super().__init__(
            directory, "org.apache.kafka.connect.cli.ConnectDistributed", str(settings)
        )

    def put(self, connector: str, settings: dict[str, str]) -> None:
        """Give a connector its settings, as soon as the worker is ready for that."""
        wait_until(lambda: self._is_put(connector, settings), "Connect answers")

    def _is_put(self, connector: str, settings: dict[str, str]) -> bool:
        self.assert_alive()
        try:
            self._request("PUT", f"/connectors/{connector}/config", settings)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _request(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    with OttlaBroker(tmp_path / "data") as broker:
        records.create_topics(broker.address, 1, "lines")
        yield broker
        broker.end(signal.SIGTERM)


class Writer:
    """A file that gets new lines all the time, until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self.path.touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No line comes after the last one that `count` speaks of."""
        self._is_over.set()
        self._thread.join()

    def _write(self) -> None:
        with self.path.open("a") as out:
            while not self._is_over.wait(_PAUSE_S):
                numbers = range(self.count, self.count + _LINES_AT_ONCE)
                out.writelines(f"line {number}\n" for number in numbers)
                out.flush()
                self.count += _LINES_AT_ONCE


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with Writer(tmp_path / "lines.txt") as writer:
        yield writer


@pytest.fixture
def worker(broker: OttlaBroker, tmp_path: Path, writer: Writer) -> Iterator[Worker]:
    with Worker(tmp_path / "connect", broker) as worker:
        connector = "org.apache.kafka.connect.file.FileStreamSourceConnector"
        settings = {
            "connector.class": connector,
            "tasks.max": "1",
            "file": str(writer.path),
            "topic": "lines",
            "exactly.once.support": "required",
        }
        worker.put("file", settings)
        yield worker


def read_lines(broker: OttlaBroker, worker: Worker, count: int) -> list[str]:
    found = records.read_until(
        broker.address, "lines", 1, lambda found: len(found) >= count, worker.assert_alive
    )
    return [value for _, value in found]


def assert_each_line_once(broker: OttlaBroker, worker: Worker, writer: Writer) -> None:
    writer.stop()
    found = read_lines(broker, worker, writer.count)
    assert found == [f"line {number}" for number in range(writer.count)]


def test_each_line_comes_once_through_kills_of_the_worker(
    broker: OttlaBroker, worker: Worker, writer: Writer
) -> None:
    for kill in range(KILLS):
        read_lines(broker, worker, (kill + 1) * STEP)
        worker.kill()
        worker.start()
    assert_each_line_once(broker, worker, writer)


def test_each_line_comes_once_through_kills_of_the_broker(
    broker: OttlaBroker, worker: Worker, writer: Writer
) -> None:
    for kill in range(KILLS):
        read_lines(broker, worker, (kill + 1) * STEP)
        broker.end(signal.SIGKILL if kill % 2 else signal.SIGTERM)
        broker.start()
    assert_each_line_once(broker, worker, writer)
