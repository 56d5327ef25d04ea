"""/readyz tells whether clients that go to this broker get acknowledgements, and why not."""

import asyncio
import random
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from crash.processes import free_port
from fakes.faulty_files import FaultyFiles
from fakes.loopback import run
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.server import Server
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.partitions import produce
from ottla.clock import Clock, SystemClock
from ottla.cluster.state import ClusterState
from ottla.cluster.store import LeaseId
from ottla.cluster.store_sqlite import STORE_FILES, SqliteStore
from ottla.cluster.values import CLIENT_LISTENER, BrokerImage
from ottla.config import BrokerConfig
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint, TimestampMs, TopicPartition, Uuid
from ottla.records.batch import Record, build_batch
from ottla.storage.log_dir import LogDir

_LOOPBACK = Endpoint("127.0.0.1", 0)
_TIMEOUT_S = 60


def options_of(data: Path, **settings: str) -> ServeOptions:
    raw = {name.replace("_", "."): value for name, value in settings.items()}
    pages = Endpoint("127.0.0.1", free_port())
    return ServeOptions(data=data, listen=_LOOPBACK, metrics=pages, config=BrokerConfig.parse(raw))


async def page(options: ServeOptions, name: str = "/readyz") -> tuple[int, str]:
    """Status and text of a page."""
    return await asyncio.to_thread(_get, f"http://{options.metrics}{name}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.read().decode()


async def wait_page(options: ServeOptions, status: int, text: str) -> None:
    """Return when /readyz says this."""
    async with asyncio.timeout(_TIMEOUT_S):
        found = (0, "")
        while found[0] != status or text not in found[1]:
            try:
                found = await page(options)
            except urllib.error.URLError:
                continue  # nobody listens yet


def test_a_broker_is_not_ready_while_it_starts_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(tmp_path)
    may_register, may_close = asyncio.Event(), asyncio.Event()
    close = Server.close

    class HeldStore(SqliteStore):
        async def grant(self, ttl_ms: int) -> LeaseId:
            await may_register.wait()
            return await super().grant(ttl_ms)

    async def open_store(data: Path, clock: Clock) -> SqliteStore:
        return await HeldStore.open(data / STORE_FILES[0], clock)

    async def close_later(server: Server) -> None:
        await may_close.wait()
        await close(server)

    monkeypatch.setattr(Server, "close", close_later)

    async def scenario() -> None:
        starting = asyncio.ensure_future(Broker.start(options, Environment(open_store=open_store)))
        await wait_page(options, 503, "not ready: the broker is starting")
        may_register.set()
        broker = await starting
        assert await page(options) == (200, "ready\n")
        stopping = asyncio.ensure_future(broker.stop())
        await wait_page(options, 503, "not ready: the broker is stopping")
        may_close.set()
        await stopping

    run(scenario(), _TIMEOUT_S)


def test_a_broker_that_lost_its_lease_is_not_ready_until_it_is_registered_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path)
        broker = await Broker.start(options, Environment())
        store = await SqliteStore.open(tmp_path / STORE_FILES[0], SystemClock())
        other = await ClusterState.open(store, random.Random(1), on_lost=lambda _: None)
        await other.register(BrokerImage(BrokerId(0), {CLIENT_LISTENER: broker.address}))
        await wait_page(options, 503, "not ready: the cluster considers this broker dead")
        await other.close()
        await store.close()
        await wait_page(options, 200, "ready")
        await broker.stop()

    run(scenario(), _TIMEOUT_S)


def test_partitions_that_do_not_follow_make_the_broker_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits for a disk that does not answer while a topic is made."""
    files = FaultyFiles()
    real = LogDir.prepare_log

    def prepare_later(log_dir: LogDir, tp: TopicPartition, topic_id: Uuid) -> None:
        files.wait_passing()
        real(log_dir, tp, topic_id)

    monkeypatch.setattr(LogDir, "prepare_log", prepare_later)

    async def scenario() -> None:
        options = options_of(tmp_path, readiness_stall_ms="100")
        broker = await Broker.start(options, Environment(files=files))
        async with Client([broker.address], timeout_s=_TIMEOUT_S) as client:
            files.hold_syncs()
            making = asyncio.ensure_future(
                admin.create_topic(client, "t", partitions=1, settings={})
            )
            await wait_page(options, 503, "have not followed the cluster's changes for")
            files.release_syncs()
            await making
            await wait_page(options, 200, "ready")
        await broker.stop()

    run(scenario(), _TIMEOUT_S)


def test_a_defect_of_one_request_costs_its_connection_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("planted")

    async def scenario() -> None:
        options = options_of(tmp_path)
        broker = await Broker.start(options, Environment())
        hello = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
        answers: list[bytes] = []
        for is_broken in (True, False):
            with monkeypatch.context() as patched:
                if is_broken:
                    patched.setattr(ApiVersions, "__call__", fail)
                reader, writer = await asyncio.open_connection(*broker.address)
                writer.write(hello)
                answers.append(await reader.read(4))
                writer.close()
        assert answers[0] == b""
        assert len(answers[1]) == 4
        _, metrics = await page(options, "/metrics")
        assert 'ottla_requests_failed_total{api="api_versions"} 1.0' in metrics
        assert 'ottla_requests_failed_total{api="produce"} 0.0' in metrics
        assert await page(options) == (200, "ready\n")
        await broker.stop()

    run(scenario(), _TIMEOUT_S)


def test_a_defect_does_not_wait_for_a_disk_that_hangs_and_keeps_the_directory_meanwhile(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        files, options = FaultyFiles(), options_of(tmp_path)
        broker = await Broker.start(options, Environment(files=files))
        client = Client([broker.address], timeout_s=_TIMEOUT_S)
        await admin.create_topic(client, "t", partitions=1, settings={})
        files.hold_syncs()
        try:
            writing = asyncio.ensure_future(produce(client, TopicPartition("t", 0), batch()))
            while "ottla_produce_waiting 1.0" not in (await page(options, "/metrics"))[1]:
                assert not writing.done()
            broker.defects.end(TypeError("planted"))
            assert (await page(options))[1] == "not ready: a defect has ended the broker\n"
            with pytest.raises(TypeError, match="planted"):
                await broker.stop()
            with pytest.raises(UsageRefused, match="in use by another broker"):
                await Broker.start(options, Environment())
            assert not writing.done() or writing.exception() is not None
        finally:
            files.release_syncs()
            writing.cancel()
            await client.close()

    run(scenario(), _TIMEOUT_S)


def batch() -> bytearray:
    return build_batch([Record(timestamp_ms=TimestampMs(-1), key=b"k", value=b"v")])
