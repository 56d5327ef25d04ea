"""One connection to one broker: questions go out, answers come back to whoever asked."""

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

ANSWER_BYTES_MAX: Final = 256 << 20  # a broker that announces more is not one
CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 30.0

_APIS: Final = {f"{api.name}Request": api for api in APIS.values()}
_TRANSACTION_FEATURE: Final = "transaction.version"
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_AND_ERROR: Final = Struct(">ih")

Answer = TypeVar("Answer")
Frame = bytes | bytearray


class Connection(asyncio.BufferedProtocol):
    """Owned by whoever opened it; may be asked several things at once, the broker keeps order.

    However the connection ends, everyone who still waits for an answer is told.
    """

    def __init__(self, endpoint: Endpoint, client_id: str) -> None:
        self.endpoint = endpoint
        self._client_id = client_id
        self._frames = FrameParser(ANSWER_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, range] = {}
        self.transaction_version = 0  # what the cluster has agreed on; 0 where it says nothing
        self._closed_because: str | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, *, client_id: str = "ottla", timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Self:
        """Connect and learn which versions the broker speaks."""
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
            raise Unreachable(f"{endpoint}: {_reason(problem)}") from None
        try:
            await connection._learn_versions(timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask(
        self,
        request: object,
        answer_class: type[Answer],
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        version_max: int | None = None,
    ) -> Answer:
        """Send a request in the highest version both sides speak and wait for its answer."""
        api = _api_of(request)
        version = self._choose_version(api, version_max)
        frame = await self._exchange(api, version, request, timeout_s)
        return self._decode(api, version, frame, answer_class)

    def tell(self, request: object, *, version_max: int | None = None) -> None:
        """Send a request that has no answer: a produce with acks 0."""
        api = _api_of(request)
        self._send(api, self._choose_version(api, version_max), request)

    def close(self) -> None:
        """End the connection; who still waits is told that it was lost."""
        self._end("the connection was closed")

    @property
    def is_open(self) -> bool:
        return self._closed_because is None

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.take(nbytes):
                self._deliver(frame)
        except ProtocolViolation as violation:
            self._end(f"it does not speak Kafka's protocol ({violation})")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(_reason(exc) if isinstance(exc, OSError) else "the broker closed the connection")

    # Inside

    async def _learn_versions(self, timeout_s: float) -> None:
        """ApiVersions in our highest version; a broker that is older says which one to use."""
        answer = await self._ask_versions(APIS[ApiKey.API_VERSIONS].versions[-1], timeout_s)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self._ask_versions(_older_version(answer), timeout_s)
        if answer.error_code != ErrorCode.NONE:
            raise Unreachable(f"{self.endpoint} refuses to say which versions it speaks")
        self._versions = {
            item.api_key: range(item.min_version, item.max_version + 1) for item in answer.api_keys
        }
        for feature in answer.finalized_features:
            if feature.name == _TRANSACTION_FEATURE:
                self.transaction_version = feature.max_version_level

    async def _ask_versions(self, version: int, timeout_s: float) -> ApiVersionsResponse:
        api = APIS[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(
            client_software_name="ottla", client_software_version=__version__
        )
        frame = await self._exchange(api, version, request, timeout_s)
        # Whoever does not know the version that was asked for answers in the oldest.
        unknown = _error_of(frame) == ErrorCode.UNSUPPORTED_VERSION
        return self._decode(api, 0 if unknown else version, frame, ApiVersionsResponse)

    def _choose_version(self, api: Api, version_max: int | None) -> int:
        """The highest version of a request that both sides speak."""
        theirs = self._versions.get(api.key, range(0))
        highest = min(api.versions.stop, theirs.stop) - 1
        if version_max is not None:
            highest = min(highest, version_max)
        if highest not in api.versions or highest not in theirs:
            raise NotSupported(f"{self.endpoint} does not support {api.name}")
        return highest

    async def _exchange(self, api: Api, version: int, request: object, timeout_s: float) -> Frame:
        """Send a request; the frame that answers it, header included."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[self._send(api, version, request)] = answer
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.endpoint} did not answer within {timeout_s:g} s"
            ) from None

    def _send(self, api: Api, version: int, request: object) -> int:
        """Write a request to the socket; returns the id its answer will have."""
        if self._transport is None or self._closed_because is not None:
            raise ConnectionLost(f"{self.endpoint}: {self._closed_because}")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(api.key, version, self._correlation_id, self._client_id)
        self._transport.write(request_frame(header, request))
        return self._correlation_id

    def _deliver(self, frame: Frame) -> None:
        if len(frame) < 4:
            raise ProtocolViolation("an answer without correlation id")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        waiter = self._waiting.pop(correlation_id, None)
        if waiter is None:
            raise ProtocolViolation(f"answer {correlation_id} to a question that nobody asked")
        if not waiter.done():  # who asked may have given up
            waiter.set_result(frame)

    def _decode(self, api: Api, version: int, frame: Frame, answer_class: type[Answer]) -> Answer:
        try:
            _, position = parse_response_header(api.key, version, frame)
            return decode(answer_class, version, frame, position)
        except ProtocolViolation as violation:
            self._end(f"it does not speak Kafka's protocol ({violation})")
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


def _older_version(answer: ApiVersionsResponse) -> int:
    """Which ApiVersions to ask a broker for that did not know ours: its highest, or the first."""
    ours = APIS[ApiKey.API_VERSIONS].versions
    theirs = [item.max_version for item in answer.api_keys if item.api_key == ApiKey.API_VERSIONS]
    return next((version for version in theirs if version in ours), ours[0])


def _error_of(frame: Frame) -> int:
    """The error of an ApiVersions answer: it stands first, whatever the version."""
    if len(frame) < _CORRELATION_ID_AND_ERROR.size:
        return ErrorCode.NONE
    _, code = _CORRELATION_ID_AND_ERROR.unpack_from(frame)
    return int(code)


def _reason(problem: OSError) -> str:
    """What the operating system calls it."""
    if problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno).lower()
    return str(problem.strerror or problem).lower()  # a name that cannot be looked up
