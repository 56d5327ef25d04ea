"""All clients of a run: producers, transactions, groups, and a program that keeps an offset."""

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from chaos.clients import Worker
from chaos.cluster import TIMEOUT_S, Cluster, NotInTime
from chaos.members import CLASSIC, CONSUMER, Auditor, Churn, Commits, Group, Ledger
from chaos.plan import Sizes
from chaos.producers import Transactor, Writer
from histories.final import read_final
from histories.history import Committed, History, Outcome
from ottla.client.client import Client
from ottla.client.group_offsets import commit_offsets
from ottla.client.partitions import Isolation, list_offsets
from ottla.model import Endpoint, Offset, TopicPartition
from ottla.protocol.messages.offsets import LATEST

TOPICS: Final = {"orders": 6, "transfers": 3}
_WRITERS: Final = 3
_CHURN_S: Final = 8.0
_CHURN_QUICK_S: Final = 2.0


class Workload:
    """Owner of the clients; `problems` is what they could not go on with."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        sizes: Sizes,
        seed: int,
        tps: Sequence[TopicPartition],
    ) -> None:
        self.problems = cluster.problems
        self._cluster = cluster
        self._history = history
        self._sizes = sizes
        self._tps = list(tps)
        self.orders = [tp for tp in tps if tp.topic == "orders"]
        self._commits = Commits()
        bootstrap, problems = cluster.bootstrap, self.problems
        self.writers = [
            Writer(
                *(f"writer{number}", bootstrap, self.orders, sizes.rate / _WRITERS),
                *(history, problems),
            )
            for number in range(_WRITERS)
        ]
        transfers = [tp for tp in tps if tp.topic == "transfers"]
        self.transactors = [
            Transactor(
                *(
                    f"transactor{number}",
                    bootstrap,
                    transfers,
                    sizes.transaction_rate / sizes.transactors,
                ),
                *(Random(f"{seed} transactor{number}"), history, problems),
            )
            for number in range(sizes.transactors)
        ]
        self.groups = [
            Group(name, bootstrap, list(TOPICS), protocol, history, self._commits, problems)
            for name, protocol in (("classic", CLASSIC), ("consumer", CONSUMER))
        ]
        pause_s = _CHURN_S if sizes.rebalances > 10 else _CHURN_QUICK_S
        self.churn = Churn(self.groups, pause_s, Random(f"{seed} churn"), problems)
        self._others: list[Worker] = [
            Ledger(bootstrap, tps[0], history, problems),
            Auditor(bootstrap, tps[0], history, problems),
        ]

    @property
    def _workers(self) -> list[Worker]:
        return [*self.writers, *self.transactors, *self._others]

    @property
    def acked_count(self) -> int:
        return sum(writer.acked_count for writer in self.writers)

    @property
    def transaction_count(self) -> int:
        return sum(one.ended_count for one in self.transactors)

    def start(self) -> None:
        asyncio.run(self._begin_groups())
        for worker in self._workers:
            worker.start()
        for group in self.groups:
            group.start()
        self.churn.start()

    async def _begin_groups(self) -> None:
        """Commit offset 0 for each group, so that no member has to ask where a partition begins.

        librdkafka asks again when the answer comes after the leader has changed, even while it
        reads on already, and then reads everything again (docs/compatibility.md).
        """
        async with self._client() as client:
            for group in self.groups:
                await commit_offsets(client, group.name, dict.fromkeys(self._tps, Offset(0)))
                for tp in self._tps:
                    first = Committed(group.name, tp, 0, Outcome.DONE)
                    self._commits.note(time.monotonic(), first)

    def _client(self) -> Client:
        addresses = [Endpoint.parse(address) for address in self._cluster.bootstrap.split(",")]
        return Client(addresses, timeout_s=TIMEOUT_S)

    def acked_since(self, since_s: float) -> set[TopicPartition]:
        """The partitions that have acknowledged a record which was sent after this time."""
        return {
            tp
            for writer in self.writers
            for tp, begun_s in list(writer.acked_begun_s.items())
            if begun_s > since_s
        }

    def has_all(self) -> bool:
        """True when the clients have done as much as the run's sizes ask for."""
        return (
            self.acked_count >= self._sizes.records
            and self.transaction_count >= self._sizes.transactions
            and self.churn.count >= self._sizes.rebalances
        )

    def wait_all(self) -> None:
        """Return when the clients have done that, for as long as they make progress."""
        before, since_s = (-1, -1, -1), time.monotonic()
        while not self.has_all():
            now = (self.acked_count, self.transaction_count, self.churn.count)
            if now != before:
                before, since_s = now, time.monotonic()
            if self.problems or time.monotonic() > since_s + TIMEOUT_S:
                raise NotInTime(f"nothing goes on: {now}")
            self._cluster.pass_time(0.2)

    def stop(self) -> None:
        """Let every client finish what it is doing."""
        self.churn.ask_to_stop()
        for worker in self._workers:
            worker.ask_to_stop()
        self.churn.join()
        for worker in self._workers:
            worker.join()
        for group in self.groups:
            group.stop()
        self._history.commits = self._commits.in_order()

    def finish(self) -> None:
        """Read everything, once no transaction is open."""
        asyncio.run(self._finish())

    async def _finish(self) -> None:
        async with self._client() as client:
            until_s = time.monotonic() + TIMEOUT_S
            while await self._has_open_transactions(client):
                assert time.monotonic() < until_s, "a transaction is open for ever"
                await asyncio.sleep(0.2)
            groups = {group.name: self._tps for group in self.groups}
            await read_final(client, self._history, self._tps, groups)

    async def _has_open_transactions(self, client: Client) -> bool:
        wanted = dict.fromkeys(self._tps, LATEST)
        return await list_offsets(client, wanted, Isolation.READ_COMMITTED) != await list_offsets(
            client, wanted, Isolation.READ_UNCOMMITTED
        )
