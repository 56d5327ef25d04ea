"""From a frame to its handler: headers and versions are checked here and nowhere else."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from struct import Struct, error
from types import CoroutineType
from typing import Any, Final

from ottla.broker.connection import Connection, RequestFailed
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.handlers.produce import Produce
from ottla.broker.pending import Answer, Parts, Pending
from ottla.broker.routes import RequestContext, Route
from ottla.broker.settings import Settings
from ottla.broker.slices import LargeRequests, finish
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
from ottla.protocol.schema import wire_fields

log = logging.getLogger("ottla.broker")


_HEAD: Final = Struct(">hhih")  # key, version, correlation id, length of the client id
_HEAD_BYTES: Final = _HEAD.size
_LARGE_BYTES: Final = 64 * 1024  # of a request; beyond, it is decoded in slices and in its turn
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
# Each of its markers is written by itself, may wait for the disk, and is asked for again.
_ENDS_WITH_CLIENT: Final = frozenset({ApiKey.WRITE_TXN_MARKERS})


class Dispatcher:
    """Produce and Fetch go straight to their handlers; everything else through the codec."""

    def __init__(
        self,
        produce: Produce,
        fetch: Fetch,
        routes: Sequence[Route],
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        end_broker: Callable[[BaseException], None],
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._produce_versions = APIS[ApiKey.PRODUCE].versions
        self._fetch_versions = APIS[ApiKey.FETCH].versions
        self._routes = {int(route.key): route for route in routes}
        self._loop = loop
        self._settings = settings
        self._large = LargeRequests(loop)
        self._end_broker = end_broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._api_versions = ApiVersions(
            [
                (ApiKey.PRODUCE, self._produce_versions),
                (ApiKey.FETCH, self._fetch_versions),
                (ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].versions),
                *((route.key, route.versions) for route in routes),
            ]
        )
        self._routes[ApiKey.API_VERSIONS] = Route(
            ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].versions, self._api_versions
        )
        self.request_counts: dict[int, int] = dict.fromkeys((_PRODUCE, _FETCH, *self._routes), 0)
        self.failed_counts = Counter[int]()

    def take(self, frame: memoryview, connection: Connection) -> Answer:
        """Answer one request, or promise to.

        A ProtocolViolation closes the connection, and so does RequestFailed: a defect of the
        handler, which is reported here, where it is known what was asked.
        """
        try:
            key, version, correlation_id, client_id_size = _HEAD.unpack_from(frame)
        except error:
            raise ProtocolViolation("the bytes end inside the request header") from None
        try:
            if key == _PRODUCE and version in self._produce_versions:
                self.request_counts[_PRODUCE] += 1
                position = _body(frame, client_id_size, version >= PRODUCE_FLEXIBLE)
                return self._produce.take(frame, position, version, correlation_id)
            if key == _FETCH and version in self._fetch_versions:
                if len(frame) > self._settings.broker.plain_request_bytes_max:
                    raise ProtocolViolation(self._too_large("FETCH", len(frame)))
                self.request_counts[_FETCH] += 1
                position = _body(frame, client_id_size, version >= FETCH_FLEXIBLE)
                answer = self._fetch.take(frame, position, version, correlation_id)
                if isinstance(answer, CoroutineType):
                    return self._promise(_FETCH, answer, connection, is_worth_finishing=False)
                return answer
            return self._take_by_codec(bytes(frame), connection)
        except (ProtocolViolation, OSError):
            raise
        except Exception as problem:
            self._note_failed(key, problem)
            raise RequestFailed from problem

    async def close(self) -> None:
        """Wait for the answers that are still being made."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _take_by_codec(self, frame: bytes, connection: Connection) -> Answer:
        header, position = parse_request_header(frame)
        route = self._routes.get(header.api_key)
        if route is None:
            raise ProtocolViolation(f"{header.api_key.name} is not served here")
        if header.api_version not in route.versions:
            return self._refuse_version(header)
        self.request_counts[header.api_key] += 1
        if len(frame) > self._settings.broker.plain_request_bytes_max:
            return self._refuse(
                header, connection, self._too_large(header.api_key.name, len(frame))
            )
        if len(frame) >= _LARGE_BYTES:
            answer = self._answer_large(frame, position, header, connection)
            return self._promise_plain(header.api_key, answer, connection)
        request_class = APIS[header.api_key].request_class
        try:
            request = decode(
                request_class, header.api_version, frame, position, elements_max=self._elements_max
            )
        except TooManyElements as problem:
            return self._refuse(header, connection, self._too_many(problem))
        context = RequestContext(header.api_version, header.client_id, connection.peer)
        response = route.answer(request, context)
        if not asyncio.iscoroutine(response):
            return bytes(response_frame(header, response))
        return self._promise_plain(header.api_key, _encoded(header, response), connection)

    async def _answer_large(
        self, frame: bytes, position: int, header: RequestHeader, connection: Connection
    ) -> bytes:
        """The answer to a request that takes long to decode."""
        request_class, version = APIS[header.api_key].request_class, header.api_version
        async with self._large.turn(len(frame)):
            steps = decode_in_slices(
                request_class, version, frame, position, elements_max=self._elements_max
            )
            try:
                request = await finish(steps)
            except TooManyElements as problem:
                return self._refuse(header, connection, self._too_many(problem))
            context = RequestContext(version, header.client_id, connection.peer)
            return await _encoded(header, self._routes[header.api_key].answer(request, context))

    def _promise_plain(
        self, key: ApiKey, parts: Coroutine[Any, Any, Parts], connection: Connection
    ) -> Pending:
        is_worth_finishing = key not in _ENDS_WITH_CLIENT
        return self._promise(key, parts, connection, is_worth_finishing=is_worth_finishing)

    def _promise(
        self,
        key: int,
        parts: Coroutine[Any, Any, Parts],
        connection: Connection,
        *,
        is_worth_finishing: bool = True,
    ) -> Pending:
        """What was begun is finished even if the client has gone, unless nobody needs that."""
        pending = Pending(is_barrier=True)
        task = self._loop.create_task(self._finish(key, parts, pending, connection))
        if not is_worth_finishing:
            pending.on_abandon(lambda: _cancel(task))
        self._tasks.add(task)
        task.add_done_callback(self._note_over)
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

    def _note_over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
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

    def _refuse(self, header: RequestHeader, connection: Connection, text: str) -> bytes:
        """The response that says so, where this version has a place for an error of its own."""
        response_class = APIS[header.api_key].response_class
        places = {
            item.name
            for item in wire_fields(response_class)
            if header.api_version in item.wire.versions and item.wire.tag is None
        }
        if "error_code" not in places:
            raise ProtocolViolation(text)
        connection.note_violation(text)
        response = response_class(error_code=ErrorCode.INVALID_REQUEST)
        if "error_message" in places:
            response.error_message = text
        return bytes(response_frame(header, response))

    def _refuse_version(self, header: RequestHeader) -> bytes:
        if header.api_key is not ApiKey.API_VERSIONS:
            raise ProtocolViolation(
                f"{header.api_key.name} version {header.api_version} is not served here"
            )
        oldest = header._replace(api_version=0)
        return bytes(response_frame(oldest, self._api_versions.unsupported()))


async def _encoded(header: RequestHeader, response: Any) -> bytes:
    """The frame of a response, or of what a coroutine returns."""
    if asyncio.iscoroutine(response):
        response = await response
    return bytes(await finish(response_frame_in_slices(header, response)))


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


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
