"""The coordination store of many machines: an etcd cluster, through its JSON gateway.

A key is stored as PREFIX/key. Only `commit` is sent once; other calls may be sent again, to the
next server, within their deadline. A watch has no deadline: the kernel notices a peer that is
gone (`etcd_connection`), and a caller that expects changes notices when none come.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from ottla.cluster.etcd_address import EtcdAddress, EtcdCredentials, EtcdTlsFiles
from ottla.cluster.etcd_connection import ResponseTooLarge
from ottla.cluster.etcd_gateway import NOT_FOUND, EtcdRefused, Gateway, Misconfigured
from ottla.cluster.etcd_messages import EndpointFailed, JsonObject, Keyspace, Message
from ottla.cluster.etcd_version import check_version
from ottla.cluster.store import (
    LEASE_TTL_MIN_MS,
    SMALLEST_LIMITS,
    ChangeBatch,
    Compacted,
    Compare,
    Conflict,
    Entry,
    LeaseId,
    LeaseLost,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
    check_size,
)
from ottla.errors import UsageRefused
from ottla.model import Endpoint

log = logging.getLogger("ottla.cluster")

CALL_TIMEOUT_S: Final = 2.0
PAGE_ENTRIES_MAX: Final = 500

_RANGE: Final = "/v3/kv/range"
_TXN: Final = "/v3/kv/txn"
_WATCH: Final = "/v3/watch"
_GRANT: Final = "/v3/lease/grant"
_KEEP_ALIVE: Final = "/v3/lease/keepalive"
_REVOKE: Final = "/v3/lease/revoke"


class EtcdStore:
    """A `CoordinationStore` in etcd, with the guarantees documented there."""

    limits = SMALLEST_LIMITS  # etcd takes 128 operations in one transaction by default
    can_fall_silent = True  # a server that hangs keeps its connections

    def __init__(self, gateway: Gateway, keys: Keyspace) -> None:
        """Use `open`."""
        self._gateway = gateway
        self._keys = keys
        self._ttl_ms: dict[LeaseId, int] = {}  # of leases granted here

    @classmethod
    async def open(
        cls,
        address: EtcdAddress,
        *,
        tls: EtcdTlsFiles | None = None,
        credentials: EtcdCredentials | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> "EtcdStore":
        """Look at every server that can be reached; one is enough.

        Raises UsageRefused when one cannot serve as a store, or belongs to another cluster.
        """
        keys = Keyspace(address.prefix)
        context = (tls or EtcdTlsFiles()).context() if address.is_tls else None
        gateway = Gateway(
            address.servers, context, credentials, keys.probe_request(), timeout_s=timeout_s
        )
        try:
            await _check_servers(gateway, address.servers)
        except BaseException:
            await gateway.close()
            raise
        if credentials is not None and not gateway.is_authenticated:
            log.warning("etcd authentication is off", extra={"user": credentials.user})
        return cls(gateway, keys)

    @property
    def cluster_id(self) -> int:
        """The id that etcd's members gave their cluster; another one is refused."""
        return self._gateway.cluster_id

    async def get(self, key: str) -> Snapshot:
        response = await self._gateway.call(_RANGE, self._keys.get_request(key))
        return Snapshot(_revision(response), tuple(self._keys.entries(response)))

    async def range(self, prefix: str) -> Snapshot:
        """Read in pages, all at the first one's revision; the deadline is that of a page."""
        limit = PAGE_ENTRIES_MAX
        while True:
            try:
                return await self._range(prefix, limit)
            except ResponseTooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 16)

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        check_size(writes, compares, self.limits)
        request = self._keys.commit_request(writes, compares)
        try:
            response = await self._gateway.call_once(_TXN, request)
        except EtcdRefused as refusal:
            if refusal.status == NOT_FOUND:
                raise LeaseLost(str(refusal)) from refusal
            raise
        if not response.flag("succeeded"):
            raise Conflict(", ".join(compare.key for compare in compares))
        return _revision(response)

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        request = self._keys.watch_request(prefix, after)
        async with contextlib.aclosing(self._gateway.stream(_WATCH, request)) as messages:
            try:
                async for message in messages:
                    _check_watch(message)
                    self._check_ahead(after)
                    for batch in self._keys.batches(message, after):
                        after = batch.revision
                        yield batch
            except ResponseTooLarge as problem:
                raise Compacted("too much has changed for one message of a watch") from problem

    async def grant(self, ttl_ms: int) -> LeaseId:
        granted_ms = max(ttl_ms, LEASE_TTL_MIN_MS)
        request: JsonObject = {"TTL": str(-(-granted_ms // 1000))}  # seconds, rounded up
        response = await self._gateway.call(_GRANT, request, is_linearizable=False)
        lease = LeaseId(response.number("ID"))
        self._ttl_ms[lease] = granted_ms
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        ttl_ms = self._ttl_ms.get(lease)
        response = await self._gateway.call(
            _KEEP_ALIVE,
            {"ID": str(lease)},
            timeout_s=None if ttl_ms is None else ttl_ms / 3000,
            is_linearizable=False,
        )
        if response.number("TTL") <= 0:
            self._ttl_ms.pop(lease, None)
            raise LeaseLost(f"lease {lease} is over")

    async def revoke(self, lease: LeaseId) -> None:
        self._ttl_ms.pop(lease, None)
        try:
            await self._gateway.call(_REVOKE, {"ID": str(lease)}, is_linearizable=False)
        except EtcdRefused as refusal:
            if refusal.status != NOT_FOUND:
                raise

    async def close(self) -> None:
        await self._gateway.close()

    async def _range(self, prefix: str, limit: int) -> Snapshot:
        first = request = self._keys.range_request(prefix, limit)
        entries: list[Entry] = []
        revision: Revision | None = None
        while True:
            response = await self._gateway.call(_RANGE, request)
            revision = revision or _revision(response)
            page = self._keys.entries(response)
            entries += page
            if not page or not response.flag("more"):
                return Snapshot(revision, tuple(entries))
            request = self._keys.next_page(first, page[-1].key, revision)

    def _check_ahead(self, after: Revision) -> None:
        """Refuse to wait for revisions after one that etcd has not reached: it went back."""
        if after > self._gateway.newest:
            raise StoreUnavailable(
                f"etcd is at revision {self._gateway.newest} and was at {after}: it was restored"
                " from a backup. Bring back its newer data"
            )


def _revision(response: Message) -> Revision:
    return Revision(response.message("header").number("revision"))


def _check_watch(message: Message) -> None:
    if not message.flag("canceled"):
        return
    if compacted := message.number("compact_revision"):
        raise Compacted(f"revisions before {compacted} are compacted")
    raise StoreUnavailable(f"etcd ended a watch: {message.text('cancel_reason') or 'no reason'}")


async def _check_servers(gateway: Gateway, servers: Sequence[Endpoint]) -> None:
    """Look at all servers at once. Raises UsageRefused for one that is of no use."""
    results = await asyncio.gather(
        *(_check_server(gateway, server) for server in servers), return_exceptions=True
    )
    failures = [result for result in results if result is not None]
    for failure in failures:
        if not isinstance(failure, StoreUnavailable):
            raise failure
    if len(failures) == len(servers):
        raise StoreUnavailable("; ".join(map(str, failures)))
    for failure in failures:
        log.warning("etcd server not reached", extra={"reason": str(failure)})


async def _check_server(gateway: Gateway, server: Endpoint) -> None:
    page = await gateway.get_page(server, "/version")
    try:
        version = Message.parse(page.body).text("etcdserver")
    except EndpointFailed:
        version = ""
    if not version:
        raise UsageRefused(
            f"{server} is not an etcd server: it responds to /version with HTTP status"
            f" {page.status} (a gRPC proxy cannot be used)"
        )
    if warning := check_version(str(server), version):
        fields = {"server": str(server), "version": version, "advice": warning}
        log.warning("etcd version has defects in leases", extra=fields)
    try:
        await gateway.probe(server)
    except Misconfigured as problem:
        raise UsageRefused(str(problem)) from problem
