"""Calls to an etcd cluster through its JSON gateway: connections, fail-over, deadlines, tokens."""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar

from ottla.cluster.etcd_address import EtcdCredentials
from ottla.cluster.etcd_connection import (
    ConnectionClosed,
    EtcdConnection,
    Headers,
    Response,
)
from ottla.cluster.etcd_messages import EndpointFailed, JsonObject, MalformedResponse, Message
from ottla.cluster.store import NEVER, Revision, StoreUnavailable
from ottla.model import Endpoint

log = logging.getLogger("ottla.cluster")

CALLS_MAX: Final = 4  # at once, each on a connection of its own: a slow one holds up no renewal

_RANGE: Final = "/v3/kv/range"
_AUTHENTICATE: Final = "/v3/auth/authenticate"
_OK: Final = 200
_NO_SUCH_PAGE: Final = 404

# Status codes of gRPC.
NOT_FOUND: Final = 5
_PERMISSION_DENIED: Final = 7
_UNAUTHENTICATED: Final = 16
# Cancelled, unknown, deadline exceeded, internal, unavailable: another server may do better.
_SERVER_FAILURES: Final = frozenset({1, 2, 4, 13, 14})
_TOKEN_REFUSALS: Final = ("user name is empty", "revision of auth store is old")

Result = TypeVar("Result")


class EtcdRefused(StoreUnavailable):
    """A refusal by etcd itself, for a reason that is the same on every server."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status  # of gRPC


class Misconfigured(EndpointFailed):
    """A server that cannot be used until an operator changes something."""


class TokenRefused(Misconfigured):
    """A request without a token that is valid now; nothing was done."""


class Gateway:
    """The way to one etcd cluster. Stays with a server until that fails."""

    def __init__(
        self,
        servers: tuple[Endpoint, ...],
        tls: ssl.SSLContext | None,
        credentials: EtcdCredentials | None,
        probe: JsonObject,
        timeout_s: float,
    ) -> None:
        """Every new connection is tried with the linearizable read `probe` before its first use."""
        self.cluster_id = 0  # as the first response said
        self.newest = NEVER  # the largest revision of any response
        self._servers = servers
        self._tls = tls
        self._credentials = credentials
        self._probe = probe
        self._timeout_s = timeout_s
        self._preferred = servers[0]
        self._served_by: Endpoint | None = None
        self._token = ""
        self._login = asyncio.Lock()
        self._idle: list[EtcdConnection] = []
        self._open: set[EtcdConnection] = set()
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._setback = ""  # a sentence, once etcd was found to have gone back
        self._is_closed = False

    @property
    def is_authenticated(self) -> bool:
        return bool(self._token)

    async def call(
        self,
        path: str,
        request: JsonObject,
        *,
        timeout_s: float | None = None,
        is_linearizable: bool = True,
    ) -> Message:
        """The response to a request that may be sent several times, to one server after another."""
        deadline_s = self._deadline_s(timeout_s)

        async def attempt(server: Endpoint) -> Message:
            connection = await self._connection(server)
            with self._given_back(connection):
                return await self._exchange(connection, path, request, is_linearizable)

        async with self._slot(deadline_s):
            return await self._on_servers(attempt, deadline_s)

    async def call_once(self, path: str, request: JsonObject) -> Message:
        """The response to a request that is sent once: another server only if one is not reached.

        A request that was refused for its token is sent again, with a new one.
        """
        deadline_s = self._deadline_s()
        async with self._slot(deadline_s):
            connection = await self._on_servers(self._connection, deadline_s)
            with self._leaving(connection.endpoint), self._given_back(connection):
                async with _ending_at(deadline_s, connection.endpoint):
                    return await self._exchange(connection, path, request, is_linearizable=True)

    async def stream(self, path: str, request: JsonObject) -> AsyncGenerator[Message, None]:
        """Messages of a response without end, on a connection of its own."""
        connection, first = await self._on_servers(
            lambda server: self._begin_stream(server, path, request), self._deadline_s()
        )
        try:
            yield first
            with self._leaving(connection.endpoint):
                while True:
                    yield self._streamed(connection, await connection.next_line())
        finally:
            self._discard(connection)

    async def get_page(self, server: Endpoint, path: str) -> Response:
        """A page of one server that is not the gateway's."""
        with self._leaving(server):
            async with _ending_at(self._deadline_s(), server):
                connection = await EtcdConnection.open(server, self._tls)
                try:
                    return await connection.request("GET", path, [], b"")
                except ConnectionClosed as problem:
                    hint = "if it uses TLS, begin the URL with etcds://"
                    raise EndpointFailed(f"{problem} ({hint})") from problem
                finally:
                    connection.abort()

    async def look(self, server: Endpoint, path: str) -> Message:
        """The response of one server about itself, which may have no leader."""
        async with _ending_at(self._deadline_s(), server):
            connection = await EtcdConnection.open(server, self._tls)
            try:
                return await self._post(connection, path, {})
            finally:
                connection.abort()

    async def probe(self, server: Endpoint) -> None:
        """Connect to one server. Raises Misconfigured if it is not one of this cluster."""
        with self._leaving(server):
            async with _ending_at(self._deadline_s(), server):
                self._idle.append(await self._connect(server))

    async def close(self) -> None:
        self._is_closed = True
        connections = list(self._open)
        for connection in connections:
            self._discard(connection)
        for connection in connections:
            await connection.wait_closed()

    async def _on_servers(
        self, attempt: Callable[[Endpoint], Awaitable[Result]], deadline_s: float
    ) -> Result:
        """The first success. Each server gets an equal share of the time that is left.

        The first is tried again at last: a connection that was idle may just have ended.
        """
        failures: list[EndpointFailed] = []
        count = len(self._servers)
        for number in range(count + 1):
            self._check_usable()
            server, now_s = self._preferred, _now_s()
            if now_s >= deadline_s:
                break
            share_s = (deadline_s - now_s) / max(1, count - number)
            try:
                with self._leaving(server):
                    async with _ending_at(now_s + share_s, server):
                        return await attempt(server)
            except EndpointFailed as failure:
                failures.append(failure)
        if len(failures) == 1:
            raise failures[0]
        texts = dict.fromkeys(map(str, failures))
        raise StoreUnavailable("; ".join(texts) or "no time was left for a call to etcd")

    @contextlib.asynccontextmanager
    async def _slot(self, deadline_s: float) -> AsyncIterator[None]:
        """A permit for a call: only so many may be under way at once."""
        async with _ending_at(deadline_s, self._preferred):
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _connection(self, server: Endpoint) -> EtcdConnection:
        """An idle connection to a server, or a new one."""
        for connection in [kept for kept in self._idle if kept.endpoint == server]:
            self._idle.remove(connection)
            if connection.is_idle:
                return connection
            self._discard(connection)
        return await self._connect(server)

    async def _connect(self, server: Endpoint) -> EtcdConnection:
        """A new connection to a server that has a leader and is one of this cluster."""
        connection = await EtcdConnection.open(server, self._tls)
        self._open.add(connection)
        try:
            self._check_usable()  # closed meanwhile: `close` did not know this connection
            await self._exchange(connection, _RANGE, self._probe, is_linearizable=True)
        except BaseException:
            self._discard(connection)
            raise
        return connection

    @contextlib.contextmanager
    def _given_back(self, connection: EtcdConnection) -> Iterator[None]:
        """Keep the connection for the next call if the response was read to its end."""
        try:
            yield
            self._note_served(connection.endpoint)
        finally:
            if connection.is_idle and not self._is_closed:
                self._idle.append(connection)
            else:
                self._discard(connection)

    async def _begin_stream(
        self, server: Endpoint, path: str, request: JsonObject
    ) -> tuple[EtcdConnection, Message]:
        connection = await self._connect(server)
        try:
            body = json.dumps(request).encode()
            status = await connection.begin_stream(path, self._headers(), body)
            line = await connection.next_line()
            if status != _OK:
                raise _refusal(server, Response(status, line))
            return connection, self._streamed(connection, line)
        except BaseException:
            self._discard(connection)
            raise

    def _streamed(self, connection: EtcdConnection, line: bytes) -> Message:
        """The result in a line of a stream."""
        result = _result(connection.endpoint, Response(_OK, line))
        self._check_header(connection.endpoint, result, NEVER)
        return result

    async def _exchange(
        self, connection: EtcdConnection, path: str, request: JsonObject, is_linearizable: bool
    ) -> Message:
        token, known = self._token, self.newest
        try:
            result = await self._post(connection, path, request)
        except TokenRefused:
            if self._credentials is None:
                raise
            await self._renew_token(connection, self._credentials, token)
            result = await self._post(connection, path, request)
        self._check_header(connection.endpoint, result, known if is_linearizable else NEVER)
        return result

    async def _post(self, connection: EtcdConnection, path: str, request: JsonObject) -> Message:
        body = json.dumps(request).encode()
        # etcd refuses to log in who sends a token that is not valid any more.
        headers = () if path == _AUTHENTICATE else self._headers()
        response = await connection.request("POST", path, headers, body)
        return _result(connection.endpoint, response)

    async def _renew_token(
        self, connection: EtcdConnection, credentials: EtcdCredentials, refused: str
    ) -> None:
        """Log in, unless another call has done so since the refused token was sent."""
        request: JsonObject = {"name": credentials.user, "password": credentials.password}
        async with self._login:
            if self._token != refused:
                return
            try:
                response = await self._post(connection, _AUTHENTICATE, request)
            except EtcdRefused as refusal:
                text = f"does not let user {credentials.user!r} in: {refusal}"
                raise Misconfigured(f"etcd at {connection.endpoint} {text}") from refusal
            self._token = response.text("token")

    def _headers(self) -> Headers:
        return [("Authorization", self._token)] if self._token else []

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the coordination store is closed")
        if self._setback:
            raise StoreUnavailable(self._setback)

    def _check_header(self, server: Endpoint, result: Message, known: Revision) -> None:
        """Refuse another cluster, which an address may lead to all of a sudden, and an older one.

        etcd is refused for good once it is behind what was known when the request was sent.
        """
        header = result.message("header")
        cluster_id, revision = header.number("cluster_id"), Revision(header.number("revision"))
        if not cluster_id:
            raise MalformedResponse(f"etcd at {server} sent a response without its cluster's id")
        self.cluster_id = self.cluster_id or cluster_id
        if cluster_id != self.cluster_id:
            raise Misconfigured(
                f"etcd at {server} belongs to cluster {cluster_id:x}, the others or its former data"
                f" to {self.cluster_id:x}: bring the old data back, or take out this server"
            )
        if revision < known:
            self._setback = (
                f"etcd at {server} is at revision {revision} and was at {known}: it was restored"
                " from a backup. Bring back its newer data, then restart the brokers"
            )
            raise StoreUnavailable(self._setback)
        self.newest = max(self.newest, revision)

    def _note_served(self, server: Endpoint) -> None:
        if self._served_by not in {None, server}:
            fields = {"server": str(server), "before": str(self._served_by)}
            log.warning("etcd server changed", extra=fields)
        self._served_by = server

    @contextlib.contextmanager
    def _leaving(self, server: Endpoint) -> Iterator[None]:
        """Prefer the next server, and drop the connections to this one, if it fails."""
        try:
            yield
        except EndpointFailed:
            self._check_usable()
            if self._preferred == server:
                following = self._servers.index(server) + 1
                self._preferred = self._servers[following % len(self._servers)]
            for connection in [kept for kept in self._idle if kept.endpoint == server]:
                self._discard(connection)
            raise

    def _discard(self, connection: EtcdConnection) -> None:
        connection.abort()
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _deadline_s(self, timeout_s: float | None = None) -> float:
        return _now_s() + (self._timeout_s if timeout_s is None else timeout_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def _ending_at(deadline_s: float, server: Endpoint) -> AsyncIterator[None]:
    begun_s = _now_s()
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError as problem:
        text = f"did not respond within {deadline_s - begun_s:.1f} s"
        raise EndpointFailed(f"etcd at {server} {text}") from problem


def _result(server: Endpoint, response: Response) -> Message:
    """The message in a response; that of a stream is wrapped. Raises for an error."""
    if response.status != _OK:
        raise _refusal(server, response)
    message = Message.parse(response.body)
    if "error" in message.fields:
        raise _refusal(server, response)
    return message.message("result") if "result" in message.fields else message


def _refusal(server: Endpoint, response: Response) -> StoreUnavailable:
    """The exception for an error, of a call or of a stream, as versions of etcd write them."""
    try:
        body = Message.parse(response.body)
    except MalformedResponse:
        return _not_from_gateway(server, response)
    inner = body.message("error") if isinstance(body.fields.get("error"), dict) else body
    status = inner.number("code") or inner.number("grpc_code")
    text = inner.text("message") or f"HTTP status {response.status}"
    if status == _UNAUTHENTICATED or any(part in text for part in _TOKEN_REFUSALS):
        return TokenRefused(f"etcd at {server} needs a user and a password: {text}")
    if status == _PERMISSION_DENIED:
        return Misconfigured(
            f"etcd at {server} lets this user not read and write below the prefix: {text}"
        )
    if status in _SERVER_FAILURES:
        return EndpointFailed(f"etcd at {server} failed: {text}")
    return EtcdRefused(status, f"etcd at {server} refused a request: {text}")


def _not_from_gateway(server: Endpoint, response: Response) -> EndpointFailed:
    if response.status == _NO_SUCH_PAGE:
        return Misconfigured(
            f"etcd at {server} has no JSON gateway: it runs with --enable-grpc-gateway=false, or is"
            " a gRPC proxy, in whose place an etcd server has to be named"
        )
    text = response.body[:200].decode(errors="replace").strip()
    return EndpointFailed(f"{server} responded with HTTP status {response.status}: {text!r}")
