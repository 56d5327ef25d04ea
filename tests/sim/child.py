"""A simulation in a process of its own: killed brokers must not clean up when they are freed."""

import contextlib
import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Final, TypeVar

T = TypeVar("T")

_FORK: Final = multiprocessing.get_context("fork")


def run_in_child(work: Callable[[], T], seconds: float) -> T | None:
    """The result of a function; None if it failed, which its stderr explains, or took too long."""
    receiver, sender = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_run_and_exit, args=(work, sender))
    with _garbage_kept():
        child.start()
    sender.close()
    result: T | None = None
    with contextlib.suppress(EOFError):  # the child died
        result = receiver.recv() if receiver.poll(seconds) else None
    child.kill()
    child.join()
    return result


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _run_and_exit(work: Callable[[], object], sender: Connection) -> None:
    # Garbage is not collected. What the parent has left would crash this process, if it is a client
    # of librdkafka, whose threads are not here; and what the work leaves goes when it ends.
    gc.disable()
    try:
        sender.send(work())
    except Exception:  # noqa: BLE001  # the parent reports that there is no result
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
