"""Ottla: a distributed message queue that speaks Kafka's wire protocol."""

from importlib import import_module
from typing import Any, Final

__version__ = "0.1.0"

# What programs import from here is loaded when it is used: importing Ottla stays cheap.
_LAZY: Final = {
    "AsyncMessage": "ottla.work.async_queue",
    "AsyncQueue": "ottla.work.async_queue",
    "LeaseLost": "ottla.work.errors",
    "Message": "ottla.work.queue",
    "Queue": "ottla.work.queue",
    "QueueEmpty": "ottla.work.errors",
    "QueueError": "ottla.work.errors",
    "Receipt": "ottla.work.puts",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    return getattr(import_module(module), name)
