"""From a frame to its handler: headers and versions are checked here and nowhere else."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from struct import Struct, error
from typing import Any, Final

from ottla.broker.answers import Answer, Pending
from ottla.broker.connection import Connection, RequestFailed
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.handlers.produce import Produce
from ottla.broker.routes import RequestContext, Route
from ottla.errors import ProtocolViolation
from ottla.protocol.api import APIS, ApiKey, RequestHeader, parse_request_header, response_frame
from ottla.protocol.codec import decode
from ottla.protocol.hot import FETCH_FLEXIBLE, PRODUCE_FLEXIBLE

log = logging.getLogger("ottla.broker")


_HEAD: Final = Struct(">hhih")  # key, version, correlation id, length of the client id
_HEAD_BYTES: Final = _HEAD.size
_CODEC_BYTES_MAX: Final = 8 << 20  # three bytes can be an element, and that is an object each
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)


class Dispatcher:
    """Produce and Fetch go straight to their handlers; everything else through the codec."""

    def __init__(
        self,
        produce: Produce,
        fetch: Fetch,
        routes: Sequence[Route],
        loop: asyncio.AbstractEventLoop,
        end_broker: Callable[[BaseException], None],
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._produce_versions = APIS[ApiKey.PRODUCE].versions
        self._fetch_versions = APIS[ApiKey.FETCH].versions
        self._routes = {int(route.key): route for route in routes}
        self._loop = loop
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
                self.request_counts[_FETCH] += 1
                position = _body(frame, client_id_size, version >= FETCH_FLEXIBLE)
                return self._fetch.take(frame, position, version, correlation_id)
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
        if len(frame) > _CODEC_BYTES_MAX:
            raise ProtocolViolation(f"{len(frame)} bytes without a record batch")
        header, position = parse_request_header(frame)
        route = self._routes.get(header.api_key)
        if route is None:
            raise ProtocolViolation(f"{header.api_key.name} is not served here")
        if header.api_version not in route.versions:
            return self._refuse_version(header)
        self.request_counts[header.api_key] += 1
        request_class = APIS[header.api_key].request_class
        request = decode(request_class, header.api_version, frame, position)
        context = RequestContext(header.api_version, header.client_id, connection.peer)
        response = route.answer(request, context)
        if not asyncio.iscoroutine(response):
            return bytes(response_frame(header, response))
        pending = Pending(is_barrier=True)
        task = self._loop.create_task(self._finish(header, response, pending, connection))
        self._tasks.add(task)
        task.add_done_callback(self._note_over)
        return pending

    async def _finish(
        self,
        header: RequestHeader,
        response: Coroutine[Any, Any, Any],
        pending: Pending,
        connection: Connection,
    ) -> None:
        """Complete a promise. What was begun is finished even if the client has gone meanwhile."""
        try:
            pending.complete(bytes(response_frame(header, await response)))
        except Exception as problem:
            connection.close()
            self._note_failed(header.api_key, problem)

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

    def _refuse_version(self, header: RequestHeader) -> bytes:
        if header.api_key is not ApiKey.API_VERSIONS:
            raise ProtocolViolation(
                f"{header.api_key.name} version {header.api_version} is not served here"
            )
        oldest = header._replace(api_version=0)
        return bytes(response_frame(oldest, self._api_versions.unsupported()))


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
