"""Many connections at once, each with one hostile request and a plain one behind it."""

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hostile.attacked_broker import PATIENCE_S, AttackedBroker
from hostile.wire import API_VERSIONS_V0, framed

_CONNECTIONS: Final = 128
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


def send_all(broker: AttackedBroker, next_frame: Callable[[], bytes], count: int) -> Counter[Fate]:
    """Send `count` frames, each on its own connection; every one must meet one of three fates."""
    fates: Counter[Fate] = Counter()
    with selectors.DefaultSelector() as selector:
        started = 0
        while sum(fates.values()) < count:
            while started < count and len(selector.get_map()) < _CONNECTIONS:
                _start(selector, broker, next_frame())
                started += 1
            for key, _ in selector.select(0.05):
                fate = _note_bytes(key.data)
                if fate is not None:
                    _end(selector, key.data)
                    fates[fate] += 1
            _hang_up_on_the_silent(selector)
    return fates


def _start(selector: selectors.BaseSelector, broker: AttackedBroker, frame: bytes) -> None:
    connection = broker.connect()
    is_whole = len(frame) == 4 + int.from_bytes(frame[:4], "big")
    attack = _Attack(connection, frame, time.monotonic() + (_WAIT_S if is_whole else 0))
    with suppress(BrokenPipeError, ConnectionResetError):  # refused while it was sent
        connection.sendall(frame + _SENTINEL)
    selector.register(connection, selectors.EVENT_READ, attack)


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
