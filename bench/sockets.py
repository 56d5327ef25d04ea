"""Loopback connections and frames with a size in front."""

import socket
from typing import Final

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 10.0
READ_BYTES: Final = 64 << 10


def dial(port: int) -> socket.socket:
    """A connection that sends at once and never waits for ever."""
    connection = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_frame(connection: socket.socket) -> bytes:
    """The next frame, without the four bytes that say its size."""
    return receive_exactly(connection, int.from_bytes(receive_exactly(connection, 4), "big"))


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    """Everything that arrives up to and past `mark`."""
    received = b""
    while mark not in received:
        received += _receive_some(connection, READ_BYTES)
    return received


def receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """The next `size_bytes` bytes."""
    received = b""
    while len(received) < size_bytes:
        received += _receive_some(connection, size_bytes - len(received))
    return received


def _receive_some(connection: socket.socket, bytes_max: int) -> bytes:
    piece = connection.recv(bytes_max)
    if not piece:
        raise ConnectionResetError("the server closed the connection")
    return piece
