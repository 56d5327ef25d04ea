"""A blocking call on an event loop fails its test, except where blocking is the design."""

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from blockbuster import BlockingError

from ottla.spark.java_home import make_shim
from ottla.storage.files import OsFiles


async def on_a_loop(call: Callable[[], object]) -> None:
    call()


def connect() -> None:
    with socket.socket() as blocking:
        blocking.connect(("127.0.0.1", 9))


def test_sleeping_on_a_loop_fails_and_elsewhere_does_not() -> None:
    pause = partial(time.sleep, 0)
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        asyncio.run(on_a_loop(pause))
    pause()


def test_a_blocking_socket_on_a_loop_fails() -> None:
    with pytest.raises(BlockingError, match=r"socket\.connect"):
        asyncio.run(on_a_loop(connect))


def test_files_are_for_storage_alone(tmp_path: Path) -> None:
    asyncio.run(on_a_loop(lambda: OsFiles().list(tmp_path)))
    with pytest.raises(BlockingError, match=r"os\."):
        asyncio.run(on_a_loop(lambda: make_shim(tmp_path / "java", tmp_path / "cache")))
