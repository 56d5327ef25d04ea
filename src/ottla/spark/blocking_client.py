"""A cluster as callers see it that block: Spark's Python workers know no event loop.

Spark uses its workers again for batch after batch, so links are kept for the life of the process,
one for each way to reach a cluster.
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

    Questions go through `client`. `watcher` is for fetches that wait for news: a broker answers
    a connection's requests in order, so they would hold up whatever comes behind them.
    """

    def __init__(self, brokers: BrokerOptions) -> None:
        self._loop = uvloop.new_event_loop()
        self.client = _client(brokers)
        self.long_poll_client = _client(brokers)
        self.state = StateTopic(self.client)
        self.checked_topic_ids: set[tuple[str, str, str]] = (
            set()
        )  # query, topic, id: known to belong together
        self._background: Future[None] | None = None
        self.is_warm = False  # whether it has been used, and what it needs is here
        # A daemon: a worker ends when Spark says so, whatever a broker is doing.
        threading.Thread(target=self._loop.run_forever, name="ottla-link", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Begin some work; its result can be waited for."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def submit_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work that nobody waits for."""
        self._background = self.submit(work)

    def call(
        self,
        request: Callable[[Client], Coroutine[Any, Any, Result]],
        timeout_s: float | None = None,
    ) -> Result:
        """Ask something and wait for the answer."""
        return self.submit(request(self.client)).result(timeout_s)


def client_for(brokers: BrokerOptions) -> BlockingClient:
    """The link to a cluster, made when it is first asked for in this process."""
    key = (os.getpid(), brokers)  # threads do not survive a fork: a child makes its own
    blocking = _clients.get(key)
    if blocking is None:
        blocking = _clients[key] = BlockingClient(brokers)
    elif not blocking.is_warm:
        # Spark collects garbage in a worker after every task. The link has been used, so what is
        # here now stays here: not looked through again and again, it saves a third of the time.
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
