"""What is true of the etcd store alone: its prefix, connections, deadlines and refusals."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from fakes.etcd_process import EtcdProcess, running, three_members
from fakes.etcd_wire import (
    EtcdProxy,
    Fault,
    http_response,
    proxy_of,
    server_that_sends,
    server_with_pages,
)
from fakes.loopback import run
from ottla.cluster import etcd_connection
from ottla.cluster.etcd_address import EtcdAddress
from ottla.cluster.etcd_gateway import Gateway
from ottla.cluster.etcd_messages import JsonObject, Keyspace, Message
from ottla.cluster.etcd_version import check_version
from ottla.cluster.store import (
    NEVER,
    SMALLEST_LIMITS,
    Compacted,
    Compare,
    Conflict,
    KeyChange,
    Put,
    Revision,
    StoreUnavailable,
)
from ottla.cluster.store_etcd import PAGE_ENTRIES_MAX, EtcdStore
from ottla.errors import UsageRefused
from ottla.model import Endpoint

WAIT_S: Final = 120.0
SOON_S: Final = 0.3  # a deadline that is meant to pass


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return tmp_path.name


@asynccontextmanager
async def opened(address: EtcdAddress, timeout_s: float = WAIT_S) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(address, timeout_s=timeout_s)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def through_proxy(
    etcd: EtcdProcess, prefix: str, timeout_s: float = WAIT_S
) -> AsyncIterator[tuple[EtcdStore, EtcdProxy]]:
    async with (
        proxy_of(etcd.endpoint) as proxy,
        opened(proxy.address(prefix), timeout_s) as store,
    ):
        yield store, proxy


def address_of(*servers: Endpoint, prefix: str = "ottla") -> EtcdAddress:
    return EtcdAddress(servers, f"{prefix}/", is_tls=False)


async def value_of(store: EtcdStore, key: str) -> bytes | None:
    entries = (await store.get(key)).entries
    return entries[0].value if entries else None


def test_keys_outside_the_prefix_are_neither_seen_nor_touched(
    etcd: EtcdProcess, prefix: str
) -> None:
    outside = [prefix, f"{prefix}0", f"{prefix}.", f"{prefix}0/a", prefix[:-1], f"a/{prefix}/a"]

    async def scenario() -> None:
        async with opened(etcd.address(prefix)) as store:
            begin = (await store.range("")).revision
            for key in outside:
                await etcd.put(key, b"theirs")
            lease = await store.grant(100_000)
            await store.commit([Put("a", b"ours", lease)], [Compare("a", NEVER)])
            assert [entry.key for entry in (await store.range("")).entries] == ["a"]
            assert f"{prefix}/a" in await etcd.keys()
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert (await anext(watch)).changes == (KeyChange("a", b"ours"),)
            await store.revoke(lease)
            assert set(outside) <= set(await etcd.keys())
            assert f"{prefix}/a" not in await etcd.keys()

    run(scenario(), WAIT_S)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.HALF])
def test_a_commit_whose_response_is_lost_is_not_sent_again(
    etcd: EtcdProcess, prefix: str, fault: Fault
) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix) as (store, proxy):
            await store.commit([Put("before", b"")])
            assert proxy.request_count == 1
            proxy.fault = fault
            with pytest.raises(StoreUnavailable, match=str(proxy.endpoint)):
                await store.commit([Put("a", b"1")], [Compare("a", NEVER)])
            assert proxy.request_count == 2
            proxy.fault = Fault.NONE
            assert await value_of(store, "a") == b"1"  # it happened, once
            with pytest.raises(Conflict):
                await store.commit([Put("a", b"2")], [Compare("a", NEVER)])

    run(scenario(), WAIT_S)


def test_a_read_whose_response_is_lost_is_sent_again(etcd: EtcdProcess, prefix: str) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix) as (store, proxy):
            await store.commit([Put("a", b"1")])
            proxy.disconnect()
            assert await value_of(store, "a") == b"1"
            proxy.disconnect()
            lease = await store.grant(100_000)
            proxy.disconnect()
            await store.keep_alive(lease)
            proxy.disconnect()
            await store.revoke(lease)

    run(scenario(), WAIT_S)


def test_a_call_that_is_not_answered_ends_at_its_deadline(etcd: EtcdProcess, prefix: str) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix, timeout_s=SOON_S) as (store, proxy):
            proxy.fault, proxy.path = Fault.HELD, "/v3/kv/range"
            with pytest.raises(StoreUnavailable, match="did not respond within"):
                await store.get("a")
            with pytest.raises(StoreUnavailable, match="did not respond within"):
                await store.commit([Put("a", b"1")])
            assert f"{prefix}/a" not in await etcd.keys(), "never sent on a connection not tried"

    run(scenario(), WAIT_S)


def test_a_renewal_that_is_not_answered_ends_after_a_third_of_the_lease(
    etcd: EtcdProcess, prefix: str
) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix, timeout_s=WAIT_S * 2) as (store, proxy):
            lease = await store.grant(1)
            proxy.fault, proxy.path = Fault.HELD, "/v3/lease/keepalive"
            with pytest.raises(StoreUnavailable, match=r"did not respond within 0\.7 s"):
                await store.keep_alive(lease)

    run(scenario(), WAIT_S)


def test_a_cancelled_call_leaves_no_response_to_the_next_one(
    etcd: EtcdProcess, prefix: str
) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix) as (store, proxy):
            await store.commit([Put("a", b"1"), Put("b", b"2")])
            proxy.fault, proxy.path = Fault.HELD, "/v3/kv/range"
            reading = asyncio.create_task(store.get("a"))
            await proxy.hit.wait()
            proxy.fault = Fault.NONE
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await value_of(store, "b") == b"2"

    run(scenario(), WAIT_S)


def test_a_watch_whose_connection_breaks_ends(etcd: EtcdProcess, prefix: str) -> None:
    async def scenario() -> None:
        async with through_proxy(etcd, prefix) as (store, proxy):
            begin = await store.commit([Put("a", b"1")])
            await store.commit([Put("a", b"2")])
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert (await anext(watch)).changes == (KeyChange("a", b"2"),)
                proxy.disconnect()
                with pytest.raises(StoreUnavailable, match=str(proxy.endpoint)):
                    await anext(watch)

    run(scenario(), WAIT_S)


@pytest.mark.slow
def test_a_killed_server_is_served_from_again_when_it_is_back(tmp_path: Path, prefix: str) -> None:
    etcd = EtcdProcess(tmp_path)

    async def scenario() -> None:
        async with opened(etcd.address(prefix)) as store:
            revision = await store.commit([Put("a", b"1")])
            await asyncio.to_thread(etcd.kill)
            with pytest.raises(StoreUnavailable):
                await store.commit([Put("a", b"2")])
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.get("a")
            await asyncio.to_thread(etcd.start)
            await store.commit([Put("a", b"3")], [Compare("a", revision)])
            await asyncio.to_thread(etcd.kill)
            await asyncio.to_thread(shutil.rmtree, etcd.data)
            await asyncio.to_thread(etcd.start)  # the same cluster by its id, at its beginning
            with pytest.raises(StoreUnavailable, match="restored from a backup"):
                await store.commit([Put("a", b"4")], [Compare("a", NEVER)])
            for number in range(10):
                await etcd.put(f"others/{number}")
            with pytest.raises(StoreUnavailable, match="restored from a backup"):
                await store.get("a")
            assert f"{prefix}/a" not in await etcd.keys()
        async with opened(etcd.address(prefix)) as store:
            with pytest.raises(StoreUnavailable, match="restored from a backup"):
                await anext(store.watch("", Revision(1_000_000)))

    with running(etcd):
        run(scenario(), WAIT_S)


def test_another_cluster_behind_the_same_address_is_refused(
    etcd: EtcdProcess, tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = EtcdProcess(tmp_path)

    async def scenario() -> None:
        async with through_proxy(etcd, prefix) as (store, proxy):
            await store.commit([Put("a", b"1")])
            proxy.target = other.endpoint
            proxy.disconnect()
            with pytest.raises(StoreUnavailable, match="belongs to cluster"):
                await store.get("a")
            with pytest.raises(StoreUnavailable, match="belongs to cluster"):
                await store.commit([Put("a", b"2")], [Compare("a", NEVER)])
            assert await other.keys() == []
            proxy.target = etcd.endpoint
            assert await value_of(store, "a") == b"1"
        with pytest.raises(UsageRefused, match="belongs to cluster"):
            await EtcdStore.open(address_of(etcd.endpoint, other.endpoint))

    with running(other):
        run(scenario(), WAIT_S)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdProcess]]:
    started = three_members(tmp_path_factory.mktemp("members"))
    with running(*started):
        yield started


@pytest.mark.slow
def test_calls_go_to_another_server_when_the_one_in_use_stops_or_stalls(
    members: list[EtcdProcess], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {str(member.endpoint): member for member in members}
    address = address_of(*(member.endpoint for member in members), prefix=prefix)

    def in_use() -> EtcdProcess:
        changes = [record for record in caplog.records if record.message == "etcd server changed"]
        return servers[changes[-1].__dict__["server"]] if changes else members[0]

    async def scenario() -> None:
        async with opened(address, timeout_s=9.0) as store:
            begin = await store.commit([Put("a", b"1")])
            revision = await store.commit([Put("a", b"2")])
            first = in_use()
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert (await anext(watch)).revision == revision
                await asyncio.to_thread(first.kill)
                with pytest.raises(StoreUnavailable, match=str(first.endpoint)):
                    await anext(watch)
            assert await served(store, "a") == b"2"
            second = in_use()
            assert second is not first
            revision = await store.commit([Put("a", b"3")], [Compare("a", revision)])
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert [(await anext(watch)).changes[0].value for _ in range(2)] == [b"2", b"3"]
            await asyncio.to_thread(first.start)
            await asyncio.to_thread(second.pause)
            try:
                assert await served(store, "a") == b"3"  # after a part of the deadline
                assert in_use() is not second
            finally:
                second.resume()

    with caplog.at_level(logging.WARNING):
        run(scenario(), WAIT_S)


async def served(store: EtcdStore, key: str) -> bytes | None:
    """A value, as soon as the members have elected a leader."""
    while True:
        try:
            return await value_of(store, key)
        except StoreUnavailable:
            await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_read_leaves_a_server_that_hangs_before_its_deadline(
    etcd: EtcdProcess, prefix: str
) -> None:
    async def scenario() -> None:
        async with (
            proxy_of(etcd.endpoint) as hanging,
            proxy_of(etcd.endpoint) as other,
            opened(address_of(hanging.endpoint, other.endpoint, prefix=prefix), 4.0) as store,
        ):
            await store.commit([Put("a", b"1")])
            hanging.fault, hanging.path = Fault.HELD, "/v3/kv/range"
            assert await value_of(store, "a") == b"1"
            assert hanging.hit.is_set()
            assert hanging.request_count
            assert await value_of(store, "a") == b"1"

    run(scenario(), WAIT_S)


@pytest.mark.slow
def test_one_server_that_can_be_reached_is_enough(
    etcd: EtcdProcess, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with server_that_sends(b"") as silent:
            gone = Endpoint("127.0.0.1", 1)
            address = address_of(silent, gone, etcd.endpoint, prefix=prefix)
            async with opened(address, timeout_s=2.0) as store:
                await store.commit([Put("a", b"1")])
                assert await value_of(store, "a") == b"1"

    run(scenario(), WAIT_S)
    assert sum(record.message == "etcd server not reached" for record in caplog.records) == 2


def test_pages_shrink_until_a_response_is_small_enough(
    etcd: EtcdProcess, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_connection, "RESPONSE_BYTES_MAX", 100_000)

    async def scenario() -> None:
        async with opened(etcd.address(prefix)) as store:
            begin = (await store.range("")).revision
            for number in range(12):
                await store.commit([Put(f"{number:02}", bytes([number]) * 20_000)])
            found = (await store.range("")).entries
            assert [entry.value[0] for entry in found] == list(range(12))
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                with pytest.raises(Compacted, match="too much"):
                    await anext(watch)

    run(scenario(), WAIT_S)


class InterruptedGateway(Gateway):
    """A gateway that has somebody write something behind the first page of a range."""

    def __init__(self, address: EtcdAddress, write: Callable[[], Awaitable[object]]) -> None:
        probe = Keyspace(address.prefix).probe_request()
        super().__init__(address.servers, None, None, probe, timeout_s=WAIT_S)
        self._write: Callable[[], Awaitable[object]] | None = write

    async def call(
        self,
        path: str,
        request: JsonObject,
        *,
        timeout_s: float | None = None,
        is_linearizable: bool = True,
    ) -> Message:
        response = await super().call(
            path, request, timeout_s=timeout_s, is_linearizable=is_linearizable
        )
        write, self._write = self._write, None
        if write is not None:
            assert response.flag("more"), "there is another page"
            await write()
        return response


def test_all_pages_of_a_range_are_of_one_revision(etcd: EtcdProcess, prefix: str) -> None:
    names = [f"{number:03}" for number in range(PAGE_ENTRIES_MAX + 1)]

    async def scenario() -> None:
        address = etcd.address(prefix)
        async with opened(address) as store:
            step = SMALLEST_LIMITS.writes
            for first in range(0, len(names), step):
                await store.commit([Put(name, b"old") for name in names[first : first + step]])
            before = (await store.get(names[0])).revision
            new = [Put(names[0], b"new"), Put(names[-1], b"new")]
            gateway = InterruptedGateway(address, lambda: store.commit(new))
            found = await EtcdStore(gateway, Keyspace(address.prefix)).range("")
            await gateway.close()
            assert (found.revision, len(found.entries)) == (before, len(names))
            assert {entry.value for entry in found.entries} == {b"old"}

    run(scenario(), WAIT_S)


def test_the_defects_of_a_version_are_logged(
    etcd: EtcdProcess, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with opened(etcd.address(prefix)) as store:
            assert store.cluster_id

    with caplog.at_level(logging.WARNING):
        run(scenario(), WAIT_S)
    logged = [record for record in caplog.records if "defects in leases" in record.message]
    version = etcd.request("GET", "/version")["etcdserver"]
    expected = [version] if check_version("", version) else []
    assert [record.__dict__["version"] for record in logged] == expected


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (http_response(200, {"etcdserver": "3.3.27"}), "is 3.3.27: use 3.4 or newer"),
        (http_response(200, {"etcdserver": "3.5.2"}), "is 3.5.2, which can corrupt its data"),
        (http_response(200, {"name": "another"}), "is not an etcd server"),
        (http_response(404, "404 page not found"), "is not an etcd server"),
        (http_response(200, "[1, 2]"), "is not an etcd server"),
    ],
    ids=["3.3", "3.5.2", "no version", "no page", "no object"],
)
def test_a_server_that_cannot_be_used_is_refused(sent: bytes, refusal: str) -> None:
    async def scenario() -> None:
        async with server_that_sends(sent) as endpoint:
            with pytest.raises(UsageRefused, match=refusal):
                await EtcdStore.open(address_of(endpoint))

    run(scenario(), WAIT_S)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "did not respond within"),
        (b"\x00\x01\x02 nothing that is HTTP\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 100_000, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "not HTTP"),
        (http_response(503, "in maintenance"), "is not an etcd server"),
    ],
    ids=["silence", "bytes", "endless header", "bad length", "status 503"],
)
def test_an_open_that_gets_no_response_says_so(sent: bytes, text: str) -> None:
    async def scenario() -> None:
        async with server_that_sends(sent) as endpoint:
            with pytest.raises((StoreUnavailable, UsageRefused), match=text):
                await EtcdStore.open(address_of(endpoint), timeout_s=SOON_S if not sent else WAIT_S)

    run(scenario(), WAIT_S)


def test_nothing_that_listens_is_said_with_its_address() -> None:
    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match=r"etcd at 127\.0\.0\.1:1 cannot be reached"):
            await EtcdStore.open(address_of(Endpoint("127.0.0.1", 1)))

    run(scenario(), WAIT_S)


def test_a_server_without_its_gateway_is_refused(tmp_path: Path) -> None:
    etcd = EtcdProcess(tmp_path, "--enable-grpc-gateway=false")

    async def scenario() -> None:
        with pytest.raises(UsageRefused, match="no JSON gateway: it runs with --enable-grpc-gate"):
            await EtcdStore.open(etcd.address("ottla"), timeout_s=WAIT_S)

    with running(etcd):
        run(scenario(), WAIT_S)


VERSION: Final = http_response(200, {"etcdserver": "3.6.5", "etcdcluster": "3.6.0"})
HEADER: Final = {"header": {"cluster_id": "7", "member_id": "8", "revision": "9"}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (503, {"error": "x", "message": "no leader", "code": 14}, StoreUnavailable, "no leader"),
        (500, {"code": 13, "message": "broken", "details": []}, StoreUnavailable, "broken"),
        (429, {"code": 8, "message": "no space"}, StoreUnavailable, "refused a request: no space"),
        (401, {"code": 16, "message": "invalid auth token"}, UsageRefused, "needs a user"),
        (403, {"code": 7, "message": "denied"}, UsageRefused, "below the prefix: denied"),
        (400, "CommonName of client will be ignored", StoreUnavailable, "CommonName"),
        (418, {"teapot": True}, StoreUnavailable, "HTTP status 418"),
        (200, {"header": {}}, StoreUnavailable, "without its cluster's id"),
        (200, "no JSON", StoreUnavailable, "not JSON"),
    ],
)
def test_errors_of_etcd_are_read_in_every_shape(
    status: int, body: dict[str, object] | str, kind: type[Exception], text: str
) -> None:
    async def scenario() -> None:
        pages = {"/version": VERSION, "/v3/kv/range": http_response(status, body)}
        async with server_with_pages(pages) as endpoint:
            with pytest.raises(kind, match=text):
                await EtcdStore.open(address_of(endpoint), timeout_s=WAIT_S)

    run(scenario(), WAIT_S)


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ({"error": {"grpc_code": 14, "message": "no leader"}}, StoreUnavailable, "no leader"),
        ({"error": {"code": 14, "message": "no leader"}}, StoreUnavailable, "no leader"),
        (
            {"result": {**HEADER, "canceled": True, "cancel_reason": "denied"}},
            StoreUnavailable,
            "ended a watch: denied",
        ),
        (
            {"result": {**HEADER, "canceled": True, "compact_revision": "5"}},
            Compacted,
            "before 5 are compacted",
        ),
        ({"result": {**HEADER, "created": True}}, StoreUnavailable, "ended the stream"),
    ],
)
def test_a_watch_that_etcd_ends_says_why(
    line: dict[str, object], kind: type[Exception], text: str
) -> None:
    async def scenario() -> None:
        pages = {
            "/version": VERSION,
            "/v3/kv/range": http_response(200, HEADER),
            "/v3/watch": http_response(200, json.dumps(line) + "\n"),
        }
        async with (
            server_with_pages(pages) as endpoint,
            opened(address_of(endpoint)) as store,
            contextlib.aclosing(store.watch("", NEVER)) as watch,
        ):
            with pytest.raises(kind, match=text):
                await anext(watch)

    run(scenario(), WAIT_S)
