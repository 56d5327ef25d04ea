"""A blocking client for a cluster: Spark's Python workers have no event loop.

Spark reuses its workers for many batches, so clients are kept until the process ends, one for each
set of broker options.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvloop

from ottla.client.client import Client
from ottla.spark.broker_options import BrokerOptions
from ottla.spark.state_topic import StateTopic

Result = TypeVar("Result")

_clients: Final[dict[tuple[int, BrokerOptions], "BlockingClient"]] = {}


class BlockingClient:
    """Owns a thread with an event loop, and two clients in it.

    `long_poll_client` is for fetches that wait for new records: a broker responds to the requests
    of a connection in order, so they would delay every request behind them. All others go through
    `client`.
    """

    def __init__(self, brokers: BrokerOptions) -> None:
        self._loop = uvloop.new_event_loop()
        self.client = _client(brokers)
        self.long_poll_client = _client(brokers)
        self.state = StateTopic(self.client)
        self.checked_topic_ids: set[tuple[str, str, str]] = (
            set()
        )  # query, topic, id: compared and found equal
        self._background: Future[None] | None = None
        self.is_warm = False  # used before, so everything it imports is loaded
        # A daemon: a worker ends when Spark ends it, whatever a broker is doing.
        threading.Thread(target=self._loop.run_forever, name="ottla-client", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start a coroutine in the event loop; returns a future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def submit_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine whose result is not needed."""
        self._background = self.submit(work)

    def call(
        self,
        request: Callable[[Client], Coroutine[Any, Any, Result]],
        timeout_s: float | None = None,
    ) -> Result:
        """Send a request with `client` and return its result."""
        return self.submit(request(self.client)).result(timeout_s)


def client_for(brokers: BrokerOptions) -> BlockingClient:
    """The client of this process for a cluster, made on first use."""
    key = (os.getpid(), brokers)  # threads do not survive a fork: a child makes its own
    blocking = _clients.get(key)
    if blocking is None:
        blocking = _clients[key] = BlockingClient(brokers)
    elif not blocking.is_warm:
        # Spark runs the garbage collector in a worker after every task. After the first use all
        # long-lived objects exist: frozen, they are not traversed, which saves a third of the time.
        blocking.is_warm = True
        gc.freeze()
    return blocking


def _client(brokers: BrokerOptions) -> Client:
    return Client(
        brokers.bootstrap,
        client_id=brokers.client_id,
        timeout_s=brokers.timeout_ms / 1000,
        addresses=dict(brokers.addresses),
    )
