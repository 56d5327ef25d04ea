"""Servers between a client and etcd, or in etcd's place, that break what tests say."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

from ottla.cluster.etcd_address import EtcdAddress
from ottla.model import Endpoint


class Fault(Enum):
    """The fate of a response, once its request has reached etcd and etcd has responded."""

    NONE = auto()
    CUT = auto()  # nothing of it arrives, the connection ends
    HALF = auto()  # a part of it arrives, the connection ends
    HELD = auto()  # nothing of it arrives, the connection stays


class EtcdProxy:
    """Passes bytes to etcd and back; a fault hits responses to requests for one path."""

    def __init__(self, target: Endpoint) -> None:
        self.target = target
        self.endpoint = Endpoint("127.0.0.1", 0)
        self.fault = Fault.NONE
        self.path = "/v3/kv/txn"
        self.request_count = 0  # with the path
        self.hit = asyncio.Event()  # a fault has hit
        self._writers: set[asyncio.StreamWriter] = set()

    def address(self, prefix: str) -> EtcdAddress:
        return EtcdAddress((self.endpoint,), f"{prefix}/", is_tls=False)

    def disconnect(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection(*self.target)
        self._writers |= {writer, upstream}
        is_doomed = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._requests(reader, upstream, is_doomed))
                pumps.create_task(self._responses(upstream_reader, writer, is_doomed))
        finally:
            for side in (writer, upstream):
                self._writers.discard(side)
                side.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        is_doomed: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if f"POST {self.path} ".encode() in data:
                    self.request_count += 1
                    if self.fault is not Fault.NONE:
                        is_doomed.set()
                upstream.write(data)
        upstream.transport.abort()

    async def _responses(
        self,
        upstream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_doomed: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await upstream.read(1 << 16):
                if is_doomed.is_set():
                    if self.fault is Fault.HALF:
                        writer.write(data[: len(data) // 2])
                        await writer.drain()
                    self.hit.set()
                    if self.fault is not Fault.HELD:
                        break
                else:
                    writer.write(data)
        writer.close()


@asynccontextmanager
async def proxy_of(target: Endpoint) -> AsyncIterator[EtcdProxy]:
    proxy = EtcdProxy(target)
    async with _listening(proxy.serve) as endpoint:
        proxy.endpoint = endpoint
        yield proxy
        proxy.disconnect()


@asynccontextmanager
async def server_that_sends(data: bytes) -> AsyncIterator[Endpoint]:
    """Sends these bytes in response to anything; nothing at all for none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async with _listening(serve) as endpoint:
        yield endpoint


@asynccontextmanager
async def server_with_pages(pages: Mapping[str, bytes]) -> AsyncIterator[Endpoint]:
    """Responds to a request, of less than a packet, with the bytes for its path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while request := await reader.read(1 << 16):
                path = request.split(b" ", 2)[1].decode()
                writer.write(pages.get(path) or http_response(404, "404 page not found"))
        writer.close()

    async with _listening(serve) as endpoint:
        yield endpoint


def http_response(status: int, body: Mapping[str, Any] | str) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status} Said\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


@asynccontextmanager
async def _listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
) -> AsyncIterator[Endpoint]:
    tasks: set[asyncio.Task[None]] = set()

    async def owned(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(owned, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield Endpoint(host, port)
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks)
