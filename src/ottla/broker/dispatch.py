"""From a frame to its handler: headers and versions are checked here and nowhere else."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from struct import Struct, error
from types import CoroutineType
from typing import Any, Final, Protocol, cast

from ottla.broker.apis import HANDLERS, Handlers
from ottla.broker.connection import Connection, RequestFailed
from ottla.broker.deferred import AnyDeferred, Deferred
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.handlers.produce import Produce
from ottla.broker.latency import Latency
from ottla.broker.pending import Parts, Pending, Response
from ottla.broker.response_errors import error_codes, error_codes_in_slices
from ottla.broker.services import RequestContext
from ottla.broker.slices import LargeRequests, finish
from ottla.clock import Clock
from ottla.errors import ErrorCode, ProtocolViolation, TooManyElements
from ottla.protocol.api import (
    APIS,
    ApiKey,
    RequestHeader,
    parse_request_header,
    response_frame,
    response_frame_in_slices,
)
from ottla.protocol.codec import decode, decode_in_slices
from ottla.protocol.hot_fetch import FETCH_FLEXIBLE
from ottla.protocol.hot_produce import PRODUCE_FLEXIBLE
from ottla.protocol.hot_share import SingleShareFetch, SingleShareFetched, read_single
from ottla.protocol.schema import wire_fields
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")


_HEAD: Final = Struct(">hhih")  # key, version, correlation id, length of the client id
_HEAD_BYTES: Final = _HEAD.size
_LARGE_BYTES: Final = 64 * 1024  # of a request; beyond, it is decoded in slices and in its turn
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_SHARE_FETCH: Final = int(ApiKey.SHARE_FETCH)
# Each of its markers is written by itself, may wait for the disk, and is asked for again.
_ENDS_WITH_CLIENT: Final = frozenset({ApiKey.WRITE_TXN_MARKERS})

# Requests that are not served, but that Kafka refuses with a code of their own where it is not
# configured for them. Kafka closes the connection for any other.
_NOT_SERVED: Final = {
    ApiKey.SASL_HANDSHAKE: ErrorCode.ILLEGAL_SASL_STATE,
    ApiKey.SASL_AUTHENTICATE: ErrorCode.ILLEGAL_SASL_STATE,
    ApiKey.CREATE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    ApiKey.RENEW_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    ApiKey.EXPIRE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
}


class TakesSingleFetches(Protocol):
    """The handler of ShareFetch, which is imported with the first member of a share group."""

    def take_single(self, request: SingleShareFetch, connection: Connection) -> Any: ...


class Dispatcher:
    """Produce and Fetch go straight to their handlers, and a ShareFetch of one partition does;
    everything else goes through the codec."""

    def __init__(
        self,
        produce: Produce,
        fetch: Fetch,
        handlers: Handlers,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        end_broker: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        self._now_s = clock.monotonic_s
        self.produce = produce
        self.fetch = fetch
        self._handlers = handlers
        self._produce_versions = APIS[ApiKey.PRODUCE].versions
        self._fetch_versions = APIS[ApiKey.FETCH].versions
        self._share_fetch_versions = APIS[ApiKey.SHARE_FETCH].versions
        self._loop = loop
        self._settings = settings
        self._large = LargeRequests(loop)
        self._end_broker = end_broker
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.request_counts: dict[int, int] = dict.fromkeys(map(int, HANDLERS), 0)
        self.failed_counts = Counter[int]()
        self.error_counts = Counter[tuple[int, int]]()  # by API and code, but for Produce and Fetch
        self.latencies = {int(key): Latency(self._now_s) for key in HANDLERS}
        self._produce_latency = self.latencies[_PRODUCE]
        self._fetch_latency = self.latencies[_FETCH]
        self._share_fetch_latency = self.latencies[_SHARE_FETCH]
        self._refusal_latency = Latency(self._now_s)  # of APIs that are not served

    def take(self, frame: memoryview, connection: Connection) -> Response:
        """The response to one request, or a pending one.

        A ProtocolViolation closes the connection, and so does RequestFailed: a defect of the
        handler, which is reported here, where it is known what was asked.
        """
        begun_s = self._now_s()
        try:
            key, version, correlation_id, client_id_size = _HEAD.unpack_from(frame)
        except error:
            raise ProtocolViolation("the bytes end inside the request header") from None
        response: Response
        try:
            if key == _PRODUCE and version in self._produce_versions:
                self.request_counts[_PRODUCE] += 1
                position = _body(frame, client_id_size, version >= PRODUCE_FLEXIBLE)
                response = self.produce.take(frame, position, version, correlation_id)
                latency = self._produce_latency
            elif key == _FETCH and version in self._fetch_versions:
                if len(frame) > self._settings.broker.plain_request_bytes_max:
                    raise ProtocolViolation(self._too_large("FETCH", len(frame)))
                self.request_counts[_FETCH] += 1
                position = _body(frame, client_id_size, version >= FETCH_FLEXIBLE)
                fetched = self.fetch.take(frame, position, version, correlation_id)
                if isinstance(fetched, CoroutineType):  # not timed: it waits for data as well
                    return self._run(_FETCH, fetched, connection, is_worth_finishing=False)
                response = fetched
                latency = self._fetch_latency
            elif (
                key == _SHARE_FETCH
                and version in self._share_fetch_versions
                and len(frame) < _LARGE_BYTES
                and (request := read_single(frame, _body(frame, client_id_size, True), version))
                is not None
            ):
                self.request_counts[_SHARE_FETCH] += 1
                response = self._take_share_fetch(request, version, correlation_id, connection)
                latency = self._share_fetch_latency
            else:
                response = self._take_by_codec(bytes(frame), connection)
                latency = self.latencies.get(key, self._refusal_latency)
        except (ProtocolViolation, ConnectionError):
            raise
        except Exception as problem:
            self._note_failed(key, problem)
            raise RequestFailed from problem
        if isinstance(response, Pending):
            response.time(latency, begun_s)
        else:
            latency.end(begun_s)
        return response

    def end_waits(self) -> None:
        """Respond to the requests that wait for something that may take long to happen.

        Others wait for the disk or for the coordination store, which respond soon.
        """
        self.fetch.close()

    async def close(self) -> None:
        """Wait for the responses that are still being made."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _take_by_codec(self, frame: bytes, connection: Connection) -> Response:
        header, position = parse_request_header(frame)
        api = APIS[header.api_key]
        if header.api_version not in api.versions:
            return self._refuse_version(header)
        if header.api_key not in HANDLERS:
            text = f"{header.api_key.name} is not served here: ApiVersions lists what is"
            code = _NOT_SERVED.get(header.api_key, ErrorCode.UNSUPPORTED_VERSION)
            return self._refuse(header, connection, text, code)
        self.request_counts[header.api_key] += 1
        if len(frame) > self._settings.broker.plain_request_bytes_max:
            return self._refuse(
                header, connection, self._too_large(header.api_key.name, len(frame))
            )
        if len(frame) >= _LARGE_BYTES:
            parts = self._handle_large(frame, position, header, connection)
            return self._run_plain(header.api_key, parts, connection)
        try:
            request = decode(
                api.request_class,
                header.api_version,
                frame,
                position,
                elements_max=self._elements_max,
            )
        except TooManyElements as problem:
            return self._refuse(header, connection, self._too_many(problem))
        context = RequestContext(header.api_version, header.client_id, connection.peer, connection)
        response = self._handlers[header.api_key](request, context)
        if isinstance(response, Deferred):
            return self._await_deferred(header, response, connection)
        if asyncio.iscoroutine(response):
            return self._run_plain(header.api_key, self._encoded(header, response), connection)
        return self._encode(header, response)

    def _take_share_fetch(
        self,
        request: SingleShareFetch,
        version: int,
        correlation_id: int,
        connection: Connection,
    ) -> Response:
        """The response to a request that was read without the codec."""
        handler = cast("TakesSingleFetches", self._handlers[ApiKey.SHARE_FETCH])
        header = RequestHeader(ApiKey.SHARE_FETCH, version, correlation_id, None)
        response = handler.take_single(request, connection)
        if isinstance(response, Deferred):
            return self._await_deferred(header, response, connection)
        return self._encode(header, response)

    async def _handle_large(
        self, frame: bytes, position: int, header: RequestHeader, connection: Connection
    ) -> bytes:
        """The response to a request that takes long to decode."""
        request_class, version = APIS[header.api_key].request_class, header.api_version
        async with self._large.turn(len(frame)):
            steps = decode_in_slices(
                request_class, version, frame, position, elements_max=self._elements_max
            )
            try:
                request = await finish(steps)
            except TooManyElements as problem:
                return self._refuse(header, connection, self._too_many(problem))
            context = RequestContext(version, header.client_id, connection.peer, connection)
            return await self._encoded(header, self._handlers[header.api_key](request, context))

    def _await_deferred(
        self, header: RequestHeader, deferred: AnyDeferred, connection: Connection
    ) -> Pending:
        """A pending response that is complete once the coordinator's log has committed."""
        pending = Pending(is_barrier=deferred.is_barrier)

        def complete() -> None:
            try:
                parts = self._encode(header, deferred.message())
            except Exception as problem:  # as in `_finish`: it costs one connection
                connection.close()
                self._note_failed(header.api_key, problem)
            else:
                pending.complete(parts)

        deferred.on_ready(complete)
        return pending

    def _run_plain(
        self, key: ApiKey, parts: Coroutine[Any, Any, Parts], connection: Connection
    ) -> Pending:
        is_worth_finishing = key not in _ENDS_WITH_CLIENT
        return self._run(key, parts, connection, is_worth_finishing=is_worth_finishing)

    def _run(
        self,
        key: int,
        parts: Coroutine[Any, Any, Parts],
        connection: Connection,
        *,
        is_worth_finishing: bool = True,
    ) -> Pending:
        """Make the response in a task. When the client disconnects, only a task that is not worth
        finishing is cancelled."""
        pending = Pending(is_barrier=True)
        task = self._loop.create_task(self._finish(key, parts, pending, connection))
        if not is_worth_finishing:
            pending.on_abandon(lambda: self._cancel(task))
        self._tasks[task] = None
        task.add_done_callback(self._note_done)
        return pending

    async def _finish(
        self,
        key: int,
        parts: Coroutine[Any, Any, Parts],
        pending: Pending,
        connection: Connection,
    ) -> None:
        try:
            pending.complete(await parts)
        except ProtocolViolation as violation:
            connection.end(violation)
        except Exception as problem:
            connection.close()
            self._note_failed(key, problem)

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        """Not at once: a task that is cancelled before it began leaves its coroutine unawaited."""
        self._loop.call_soon(task.cancel)

    def _note_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._end_broker(problem)

    def _note_failed(self, key: int, problem: Exception) -> None:
        """A handler failed. It costs one connection; a broken assertion of ours, the broker."""
        self.failed_counts[key] += 1
        api = ApiKey(key).name
        if isinstance(problem, AssertionError):
            problem.add_note(f"in a handler of {api}")
            self._end_broker(problem)
        else:
            log.error(
                "request failed, its connection is closed", extra={"api": api}, exc_info=problem
            )

    # Responses

    def _encode(self, header: RequestHeader, message: object) -> bytes:
        """The frame of a response message, whose errors are counted."""
        if isinstance(message, SingleShareFetched):  # has none
            return message.frame(header.correlation_id)
        key = header.api_key
        for code in error_codes(message, header.api_version):
            self.error_counts[key, code] += 1
        return bytes(response_frame(header, message))

    async def _encoded(self, header: RequestHeader, response: object) -> bytes:
        """The frame of a response message, or of a coroutine or Deferred of it."""
        if isinstance(response, Deferred):
            response = await _message(response)
        elif asyncio.iscoroutine(response):
            response = await response
        for code in await finish(error_codes_in_slices(response, header.api_version)):
            self.error_counts[header.api_key, code] += 1
        return bytes(await finish(response_frame_in_slices(header, response)))

    # Requests that are too large

    @property
    def _elements_max(self) -> int:
        return self._settings.broker.request_elements_max

    def _too_large(self, name: str, size_bytes: int) -> str:
        limit = self._settings.broker.plain_request_bytes_max
        return (
            f"{name}: a request of {size_bytes} bytes without records, and"
            f" max.plain.request.bytes allows {limit}: send less at a time, or raise it"
        )

    def _too_many(self, problem: TooManyElements) -> str:
        return (
            f"{problem}, as many as max.request.elements allows: send less at a time, or raise it"
        )

    def _refuse(
        self,
        header: RequestHeader,
        connection: Connection,
        text: str,
        code: ErrorCode = ErrorCode.INVALID_REQUEST,
    ) -> bytes:
        """An error response, if the response of this version has an error field of its own."""
        response_class = APIS[header.api_key].response_class
        fields = {
            item.name
            for item in wire_fields(response_class)
            if header.api_version in item.wire.versions and item.wire.tag is None
        }
        if "error_code" not in fields:
            raise ProtocolViolation(text)
        connection.note_violation(text)
        response = response_class(error_code=code)
        if "error_message" in fields:
            response.error_message = text
        return self._encode(header, response)

    def _refuse_version(self, header: RequestHeader) -> bytes:
        if header.api_key is not ApiKey.API_VERSIONS:
            raise ProtocolViolation(
                f"{header.api_key.name} version {header.api_version} is not served here"
            )
        oldest = header._replace(api_version=0)
        handler = self._handlers[ApiKey.API_VERSIONS]
        assert isinstance(handler, ApiVersions), "the table has a row for it"
        return bytes(response_frame(oldest, handler.unsupported_version()))


async def _message(deferred: AnyDeferred) -> Any:
    ready = asyncio.Event()
    deferred.on_ready(ready.set)
    await ready.wait()
    return deferred.message()


def _body(frame: memoryview, client_id_size: int, is_flexible: bool) -> int:
    """Where the body starts, for the two requests whose headers are not decoded."""
    position = _HEAD_BYTES
    if client_id_size > 0:
        position += client_id_size
    if not is_flexible:
        return position
    try:
        if frame[position] == 0:
            return position + 1
    except IndexError:
        raise ProtocolViolation("the bytes end inside the request header") from None
    return parse_request_header(frame)[1]
