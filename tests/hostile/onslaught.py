"""Many connections at once, each with a hostile request and a plain one behind it.

A connection whose plain request was answered is as good as new, and used for the next.
"""

import math
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hostile.attacked_broker import PATIENCE_S, AttackedBroker
from hostile.wire import API_VERSIONS_V0, framed

_CONNECTIONS: Final = 128
_LOOK_S: Final = 0.05  # how often we look for the silent
_WAIT_S: Final = 0.3  # a mutant may be a long poll: then we hang up
_SENTINEL: Final = framed(API_VERSIONS_V0[:4] + (0x5EA1BEEF).to_bytes(4, "big") + b"\xff\xff")
_SENTINEL_ID: Final = (0x5EA1BEEF).to_bytes(4, "big")


class Fate(StrEnum):
    CLOSED = "the broker closed the connection"
    ANSWERED = "the request behind it was answered"
    LEFT = "we hung up first, and the broker closed"


@dataclass(slots=True)
class _Attack:
    socket: socket.socket
    frame: bytes
    deadline_s: float
    tail: bytes = b""
    has_left: bool = False


def send_all(
    broker: AttackedBroker, next_frame: Callable[[], bytes], count: int, *, wait_s: float = _WAIT_S
) -> Counter[Fate]:
    """Send `count` frames; every one must meet one of three fates.

    After `wait_s` without an end we hang up.
    """
    fates: Counter[Fate] = Counter()
    idle: list[socket.socket] = []
    with selectors.DefaultSelector() as selector, closing_all(selector):
        started = ended = 0
        look_at_s = 0.0
        while ended < count:
            while started < count and started - ended < _CONNECTIONS:
                connection = idle.pop() if idle else _connect(selector, broker)
                _send(selector, connection, next_frame(), wait_s)
                started += 1
            for key, _ in selector.select(_LOOK_S):
                fate = _note_bytes(key.data)
                if fate is None:
                    continue
                fates[fate] += 1
                ended += 1
                if fate is Fate.ANSWERED and not key.data.has_left:
                    idle.append(key.data.socket)
                    key.data.deadline_s = math.inf
                else:
                    _end(selector, key.data)
            if time.monotonic() > look_at_s:
                _hang_up_on_the_silent(selector)
                look_at_s = time.monotonic() + _LOOK_S
    return fates


@contextmanager
def closing_all(selector: selectors.BaseSelector) -> Iterator[None]:
    """Whatever happens, no connection is left open."""
    try:
        yield
    finally:
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def _connect(selector: selectors.BaseSelector, broker: AttackedBroker) -> socket.socket:
    connection = broker.connect()
    selector.register(connection, selectors.EVENT_READ)
    return connection


def _send(
    selector: selectors.BaseSelector, connection: socket.socket, frame: bytes, wait_s: float
) -> None:
    is_whole = len(frame) == 4 + int.from_bytes(frame[:4], "big")
    attack = _Attack(connection, frame, time.monotonic() + (wait_s if is_whole else 0))
    selector.modify(connection, selectors.EVENT_READ, attack)
    with suppress(BrokenPipeError, ConnectionResetError):  # refused while it was sent
        connection.sendall(frame + _SENTINEL)


def _note_bytes(attack: _Attack) -> Fate | None:
    try:
        data = attack.socket.recv(1 << 16)
    except ConnectionResetError:
        data = b""
    if not data:
        return Fate.LEFT if attack.has_left else Fate.CLOSED
    is_answered = _SENTINEL_ID in attack.tail + data
    attack.tail = data[-3:]
    return Fate.ANSWERED if is_answered else None


def _hang_up_on_the_silent(selector: selectors.BaseSelector) -> None:
    now_s = time.monotonic()
    for key in list(selector.get_map().values()):
        attack: _Attack = key.data
        if now_s < attack.deadline_s:
            continue
        assert not attack.has_left, f"no end after {PATIENCE_S} s: {attack.frame.hex()}"
        attack.has_left = True
        attack.deadline_s = now_s + PATIENCE_S
        with suppress(OSError):  # it has been closed meanwhile
            attack.socket.shutdown(socket.SHUT_WR)


def _end(selector: selectors.BaseSelector, attack: _Attack) -> None:
    selector.unregister(attack.socket)
    attack.socket.close()
