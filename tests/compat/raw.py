"""A bare socket that speaks the protocol: for what no well-behaved client would say."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, Final

from compat.adapter import PATIENCE_S
from ottla.model import Endpoint
from ottla.protocol.api import (
    APIS,
    ApiKey,
    RequestHeader,
    key_of,
    parse_response_header,
    request_frame,
)
from ottla.protocol.codec import decode

_SIZE: Final = Struct(">i")


class RawConnection:
    """Requests go out in the version that the test names; nothing is retried or hidden."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._correlation_id = 0

    def ask(self, request: object, version: int) -> Any:
        """Send a request and return the answer to it."""
        self.tell(request, version)
        return self.answer(key_of(type(request)), version)

    def tell(self, request: object, version: int) -> None:
        """Send a request and do not wait."""
        self._correlation_id += 1
        header = RequestHeader(key_of(type(request)), version, self._correlation_id, "raw")
        self.write(bytes(request_frame(header, request)))

    def answer(self, key: ApiKey, version: int) -> Any:
        """The next answer, to a request of this kind."""
        frame = self.read_frame()
        _, position = parse_response_header(key, version, frame)
        return decode(APIS[key].response_class, version, frame, position)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_frame(self) -> bytes:
        return self._read(_SIZE.unpack(self._read(4))[0])

    def is_closed_by_broker(self) -> bool:
        """Wait until the broker ends the connection; False if it says something instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data


@contextmanager
def connected(address: str) -> Iterator[RawConnection]:
    with socket.create_connection(Endpoint.parse(address), timeout=PATIENCE_S) as sock:
        yield RawConnection(sock)
