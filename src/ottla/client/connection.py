"""A connection to a broker: sends requests and matches responses by correlation id."""

import asyncio
import os
from struct import Struct
from typing import Final, Self, TypeVar

from ottla import __version__
from ottla.client.errors import ConnectionLost, DeadlineExceeded, NotSupported, Unreachable
from ottla.errors import ErrorCode, ProtocolViolation
from ottla.model import Endpoint
from ottla.protocol.api import (
    APIS,
    Api,
    ApiKey,
    RequestHeader,
    parse_response_header,
    request_frame,
)
from ottla.protocol.codec import decode
from ottla.protocol.frames import FrameParser
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

RESPONSE_BYTES_MAX: Final = 256 << 20  # a larger frame is not from a Kafka broker
CONNECT_TIMEOUT_S: Final = 10.0
RESPONSE_TIMEOUT_S: Final = 30.0

CLOSED: Final = "the connection was closed without a response"

_APIS: Final = {f"{api.name}Request": api for api in APIS.values()}
_TRANSACTION_FEATURE: Final = "transaction.version"
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_AND_ERROR: Final = Struct(">ih")

# The first bytes of servers of other protocols. An HTTP server responds once a line has ended: the
# correlation id of the first request is two ends of a line, so that it does at once.
_FIRST_CORRELATION_ID: Final = int.from_bytes(b"\r\n\r\n")
_FOREIGN: Final = (
    (b"HTTP/", "it speaks HTTP"),
    (b"<", "it speaks HTTP"),  # a page without a status line, as for HTTP 0.9
    (b"\x15\x03", "it speaks TLS"),  # an alert
    (b"\x16\x03", "it speaks TLS"),
    (b"SSH-", "it speaks SSH"),
)
_HEAD_BYTES: Final = 5

Response = TypeVar("Response")
Frame = bytes | bytearray


class Connection(asyncio.BufferedProtocol):
    """A connection, owned by its opener; requests may be pipelined, the broker keeps their order.

    When the connection ends, every pending request fails with `ConnectionLost`.
    """

    def __init__(self, endpoint: Endpoint, client_id: str) -> None:
        self.endpoint = endpoint
        self._client_id = client_id
        self._frames = FrameParser(RESPONSE_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = _FIRST_CORRELATION_ID - 1
        self._head = b""  # the first bytes of the first response
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, range] = {}
        self.transaction_version = 0  # finalized in the cluster; 0 if it has none
        self._closed_because: str | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, *, client_id: str = "ottla", timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Self:
        """Connect and fetch the API versions of the broker."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(endpoint, client_id), endpoint.host, endpoint.port
                )
        except TimeoutError:
            raise Unreachable(
                f"{endpoint} did not accept a connection in {timeout_s:g} s"
            ) from None
        except OSError as problem:
            is_refused = isinstance(problem, ConnectionRefusedError)
            raise Unreachable(f"{endpoint}: {_reason(problem)}", is_refused=is_refused) from None
        try:
            await connection._fetch_versions(timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    async def send(
        self,
        request: object,
        response_class: type[Response],
        *,
        timeout_s: float = RESPONSE_TIMEOUT_S,
        version_max: int | None = None,
    ) -> Response:
        """Send a request in the highest common version and wait for its response."""
        api = _api_of(request)
        version = self._choose_version(api, version_max)
        frame = await self._exchange(api, version, request, timeout_s)
        return self._decode(api, version, frame, response_class)

    def send_oneway(self, request: object, *, version_max: int | None = None) -> None:
        """Send a request that has no response: Produce with acks=0."""
        api = _api_of(request)
        self._send(api, self._choose_version(api, version_max), request)

    def close(self) -> None:
        """Close the connection; pending requests fail with `ConnectionLost`."""
        self._end("the connection was closed")

    @property
    def is_open(self) -> bool:
        return self._closed_because is None

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if len(self._head) < _HEAD_BYTES:
            self._head += self._frames.received(nbytes)[:_HEAD_BYTES]
        try:
            for frame in self._frames.take(nbytes):
                self._deliver(frame)
        except ProtocolViolation as violation:
            foreign = _foreign_protocol(self._head)
            self._end(foreign or f"the response violates Kafka's protocol ({violation})")

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._end(_reason(exc))
        elif self._head:
            self._end(_foreign_protocol(self._head) or "the broker closed the connection")
        else:
            self._end(CLOSED)

    # Internals

    async def _fetch_versions(self, timeout_s: float) -> None:
        """Send ApiVersions in our highest version; an older broker returns the one to use."""
        response = await self._request_versions(APIS[ApiKey.API_VERSIONS].versions[-1], timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self._request_versions(_older_version(response), timeout_s)
        if response.error_code != ErrorCode.NONE:
            raise Unreachable(
                f"{self.endpoint} refused ApiVersions with error {response.error_code}"
            )
        self._versions = {
            item.api_key: range(item.min_version, item.max_version + 1)
            for item in response.api_keys
        }
        for feature in response.finalized_features:
            if feature.name == _TRANSACTION_FEATURE:
                self.transaction_version = feature.max_version_level

    async def _request_versions(self, version: int, timeout_s: float) -> ApiVersionsResponse:
        api = APIS[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(
            client_software_name="ottla", client_software_version=__version__
        )
        frame = await self._exchange(api, version, request, timeout_s)
        # A broker that does not know the requested version responds in the oldest.
        unknown = _error_of(frame) == ErrorCode.UNSUPPORTED_VERSION
        return self._decode(api, 0 if unknown else version, frame, ApiVersionsResponse)

    def _choose_version(self, api: Api, version_max: int | None) -> int:
        """The highest version of a request that both sides support."""
        theirs = self._versions.get(api.key, range(0))
        highest = min(api.versions.stop, theirs.stop) - 1
        if version_max is not None:
            highest = min(highest, version_max)
        if highest not in api.versions or highest not in theirs:
            raise NotSupported(f"{self.endpoint} does not support {api.name}")
        return highest

    async def _exchange(self, api: Api, version: int, request: object, timeout_s: float) -> Frame:
        """Send a request; return the frame of its response, header included."""
        response: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        correlation_id = self._send(api, version, request)
        assert correlation_id not in self._waiting, f"request {correlation_id} is still pending"
        self._waiting[correlation_id] = response
        try:
            async with asyncio.timeout(timeout_s):
                return await response
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.endpoint} did not respond within {timeout_s:g} s"
            ) from None

    def _send(self, api: Api, version: int, request: object) -> int:
        """Write a request to the socket; return its correlation id."""
        if self._transport is None or self._closed_because is not None:
            raise ConnectionLost(f"{self.endpoint}: {self._closed_because}")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(api.key, version, self._correlation_id, self._client_id)
        self._transport.write(request_frame(header, request))
        return self._correlation_id

    def _deliver(self, frame: Frame) -> None:
        if len(frame) < 4:
            raise ProtocolViolation("a response without correlation id")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        waiter = self._waiting.pop(correlation_id, None)
        if waiter is None:
            raise ProtocolViolation(f"response {correlation_id} matches no pending request")
        if not waiter.done():  # the caller may have timed out
            waiter.set_result(frame)

    def _decode(
        self, api: Api, version: int, frame: Frame, response_class: type[Response]
    ) -> Response:
        try:
            _, position = parse_response_header(api.key, version, frame)
            return decode(response_class, version, frame, position)
        except ProtocolViolation as violation:
            self._end(f"the response violates Kafka's protocol ({violation})")
            raise ConnectionLost(f"{self.endpoint}: {self._closed_because}") from None

    def _end(self, reason: str) -> None:
        if self._closed_because is not None:
            return
        self._closed_because = reason
        if self._transport is not None:
            self._transport.abort()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(f"{self.endpoint}: {reason}"))
        self._waiting.clear()


def _api_of(request: object) -> Api:
    return _APIS[type(request).__name__]


def _foreign_protocol(head: bytes) -> str | None:
    for start, protocol in _FOREIGN:
        if head.startswith(start):
            return f"{protocol}, not Kafka's protocol"
    return None


def _older_version(response: ApiVersionsResponse) -> int:
    """The ApiVersions version for a broker that does not know ours: its highest, or the first."""
    ours = APIS[ApiKey.API_VERSIONS].versions
    theirs = [item.max_version for item in response.api_keys if item.api_key == ApiKey.API_VERSIONS]
    return next((version for version in theirs if version in ours), ours[0])


def _error_of(frame: Frame) -> int:
    """The error code of an ApiVersions response: the first field in every version."""
    if len(frame) < _CORRELATION_ID_AND_ERROR.size:
        return ErrorCode.NONE
    _, code = _CORRELATION_ID_AND_ERROR.unpack_from(frame)
    return int(code)


def _reason(problem: OSError) -> str:
    """The operating system's description of an error."""
    if problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno).lower()
    return str(problem.strerror or problem).lower()  # a host name that cannot be resolved
