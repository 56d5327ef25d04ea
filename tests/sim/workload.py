"""Clients of a simulation: producers, transactions, readers and groups, as programs would be."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, TypeVar

from histories.final import read_final
from histories.history import (
    Committed,
    History,
    Outcome,
    Read,
    Seen,
    Sent,
    Transaction,
    Written,
    value_of,
)
from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.client.errors import ClientError, Refused, Unreachable
from ottla.client.group_member import GroupMember, MemberTimes
from ottla.client.group_offsets import commit_offsets, committed_offsets
from ottla.client.group_reader import Assigned, GroupEvent, GroupReader
from ottla.client.partitions import FetchLimits
from ottla.client.producer import IdempotentProducer
from ottla.client.transactional_producer import TransactionalProducer
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.records.batch import Record, pack
from sim.cluster import Cluster
from sim.invariants import Invariants

Result = TypeVar("Result")

_CLIENT_TIMEOUT_S: Final = 4.0
_QUICK_TIMEOUT_S: Final = 0.5
_PAUSE_S: Final = 0.03  # between two records of a producer, on average
_LIMITS: Final = FetchLimits(wait_ms_max=200)
_TIMES: Final = MemberTimes(session_ms=6000, rebalance_ms=6000, heartbeat_ms=1000)
# Errors that say for certain that nothing was written.
_REFUSALS: Final = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_RECORD}
)


class CountingClient(Client):
    """A client that counts how often it has tried something."""

    attempt_count = 0

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        *,
        on: tuple[type[ClientError], ...] = (Unreachable,),
        timeout_s: float | None = None,
    ) -> Result:
        def counted() -> Awaitable[Result]:
            self.attempt_count += 1
            return attempt()

        return await super().retry(counted, on=on, timeout_s=timeout_s)


class RecordingMember(GroupMember):
    """A member of a group whose commits are part of the history."""

    history: History

    async def commit(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        outcome = Outcome.UNKNOWN
        try:
            is_done = await super().commit(offsets)
            outcome = Outcome.DONE if is_done else Outcome.REFUSED
        finally:
            self.history.commits.extend(
                Committed(self.group_id, tp, offset, outcome) for tp, offset in offsets.items()
            )
        return is_done


class Workload:
    """Owner of the clients. `stop` lets them finish what they are doing."""

    def __init__(self, cluster: Cluster, history: History, seed: int) -> None:
        self.cluster = cluster
        self.history = history
        self.invariants = Invariants(cluster)
        self.is_stopping = False
        self.acked_count = 0
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Callable[[str, Random], Awaitable[None]]) -> None:
        """Run a client; it has random numbers of its own."""
        rng = Random(f"{self._seed} {name}")

        async def run() -> None:
            await work(name, rng)

        self._tasks.append(self.cluster.run_client(run(), name))

    async def stop(self) -> None:
        self.is_stopping = True
        for task in self._tasks:
            await task

    def client(self, name: str, timeout_s: float = _CLIENT_TIMEOUT_S) -> "CountingClient":
        return CountingClient(self.cluster.bootstrap, client_id=name, timeout_s=timeout_s)

    # Producers

    def produce(self, tps: list[TopicPartition]) -> Callable[[str, Random], Awaitable[None]]:
        """A program that writes records, and opens a new producer when it does not know how one
        of them fared."""

        async def run(name: str, rng: Random) -> None:
            number = 0
            async with self.client(name) as client:
                while not self.is_stopping:
                    with contextlib.suppress(ClientError):
                        producer = await IdempotentProducer.open(client)
                        while not self.is_stopping:
                            await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                            number += 1
                            await self._write(client, producer, rng.choice(tps), name, number)

        return run

    async def _write(
        self,
        client: "CountingClient",
        producer: IdempotentProducer,
        tp: TopicPartition,
        name: str,
        number: int,
    ) -> None:
        record = Record(timestamp_ms=self.cluster.loop.now_ms(), value=_bytes(name, number))
        attempts_before = client.attempt_count
        try:
            offset = await producer.write(tp, [record])
        except ClientError as problem:
            is_first = client.attempt_count == attempts_before + 1
            self._note(Sent(name, tp, number, outcome_of(problem, is_first=is_first)))
            raise
        self.acked_count += 1
        if offset is not None:
            self.invariants.check_acknowledged(tp, offset)
        self._note(Sent(name, tp, number, Outcome.DONE, offset))

    def _note(self, sent: Sent) -> None:
        self.history.sent.append(sent)
        self.cluster.trace("sent", sent.value, sent.tp, sent.outcome.value, sent.offset)

    # Transactions

    def transact(self, tps: list[TopicPartition]) -> Callable[[str, Random], Awaitable[None]]:
        """A program that writes records in transactions, and aborts some of them."""

        async def run(name: str, rng: Random) -> None:
            count = 0
            async with self.client(name) as client:
                while not self.is_stopping:
                    with contextlib.suppress(ClientError):
                        producer = await TransactionalProducer.open(client, name, timeout_ms=8000)
                        while not self.is_stopping:
                            await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                            count += 1
                            await self._transact(name, producer, tps, count, rng)

        return run

    async def _transact(
        self,
        name: str,
        producer: TransactionalProducer,
        tps: list[TopicPartition],
        count: int,
        rng: Random,
    ) -> None:
        transaction = f"{name}-{count}"
        for item in range(rng.randint(1, 4)):
            number, tp = count * 10 + item, rng.choice(tps)
            record = Record(timestamp_ms=self.cluster.loop.now_ms(), value=_bytes(name, number))
            try:
                await producer.write_packed(tp, pack([record]))
            except ClientError:
                self._note(Sent(name, tp, number, Outcome.UNKNOWN, transaction=transaction))
                raise
            self._note(Sent(name, tp, number, Outcome.DONE, transaction=transaction))
        is_commit = rng.random() < 0.8
        outcome = Outcome.UNKNOWN
        try:
            await (producer.commit() if is_commit else producer.abort())
            outcome = Outcome.DONE
            self.acked_count += 1
        finally:
            self.history.transactions.append(Transaction(transaction, is_commit, outcome))
            self.cluster.trace("transaction", transaction, is_commit, outcome.value)

    # Groups

    def consume(self, group: str, topics: list[str]) -> Callable[[str, Random], Awaitable[None]]:
        """A member of a group that commits what it has read."""

        async def run(name: str, rng: Random) -> None:
            sessions = 0
            async with self.client(name) as client:
                while not self.is_stopping:
                    sessions += 1
                    with contextlib.suppress(ClientError):
                        await self._consume(client, name, group, topics, sessions * 1000)

        return run

    async def _consume(
        self, client: Client, name: str, group: str, topics: list[str], session: int
    ) -> None:
        sessions = [session]

        def note(event: GroupEvent) -> None:
            if isinstance(event, Assigned):
                sessions[0] += 1

        member = RecordingMember(client, group, topics, _TIMES)
        member.history = self.history
        reader = GroupReader(member, limits=_LIMITS, note=note)
        try:
            while not self.is_stopping:
                for reading in await reader.next_readings():
                    records = tuple(
                        (r.offset, _text(r)) for batch in reading.batches for r in batch.records()
                    )
                    self.history.reads.append(Read(name, reading.tp, records, session=sessions[0]))
                    self.cluster.trace("read", name, reading.tp, records[0][0], records[-1][0])
                    reader.note_done(reading.tp, reading.end)
                await reader.commit()
        finally:
            with contextlib.suppress(ClientError):
                await reader.close()

    # Offsets that programs keep for themselves

    def keep_offset(self, tp: TopicPartition) -> Callable[[str, Random], Awaitable[None]]:
        """A program that stores ever higher offsets in a group of its name."""

        async def run(name: str, rng: Random) -> None:
            offset = 0
            while not self.is_stopping:
                await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                offset += 1
                # A new client finds the next coordinator long before readers leave the last one. A
                # write to that one would keep it from responding: nothing behind it is committed.
                async with self.client(name, _QUICK_TIMEOUT_S) as client:
                    await self._keep(client, name, tp, offset)

        return run

    async def _keep(self, client: Client, group: str, tp: TopicPartition, offset: int) -> None:
        ended_s = None
        with contextlib.suppress(ClientError):
            await commit_offsets(client, group, {tp: Offset(offset)})
            ended_s = self.cluster.loop.time()
        self.history.written.append(Written(group, offset, ended_s))
        self.cluster.trace("stored", group, offset, ended_s is not None)

    def look_up(self, group: str, tp: TopicPartition) -> Callable[[str, Random], Awaitable[None]]:
        """A program that asks what is stored in a group."""

        async def run(name: str, rng: Random) -> None:
            async with self.client(name) as client:
                while not self.is_stopping:
                    await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                    begun_s = self.cluster.loop.time()
                    with contextlib.suppress(ClientError):
                        found = await committed_offsets(client, group, [tp])
                        self.history.seen.append(Seen(group, found.get(tp), begun_s))
                        self.cluster.trace("seen", group, found.get(tp))

        return run

    # The end

    async def create_topics(self, counts: dict[str, int], config: dict[str, str]) -> None:
        """Create topics, each with so many partitions."""

        async def run() -> None:
            async with self.client("admin") as client:
                for name, count in counts.items():
                    await create_topic(client, name, partitions=count, settings=config)

        await self.cluster.run_client(run(), "admin")

    async def finish(
        self, tps: list[TopicPartition], groups: Mapping[str, list[TopicPartition]]
    ) -> None:
        """After the calm phase: read everything, and the offsets of the groups."""

        async def run() -> None:
            async with self.client("checker") as client:
                await read_final(client, self.history, tps, groups)

        await self.cluster.run_client(run(), "checker")

    async def probe(self, tps: list[TopicPartition], within_s: float) -> None:
        """Every partition must acknowledge a record in time; all faults are over."""

        async def try_one(client: CountingClient, tp: TopicPartition) -> None:
            name, number = f"probe-{tp}", 0
            try:
                async with asyncio.timeout(within_s):
                    while True:
                        with contextlib.suppress(ClientError):
                            number += 1
                            producer = await IdempotentProducer.open(client)
                            await self._write(client, producer, tp, name, number)
                            return
            except TimeoutError:
                self.history.unavailable.append(tp)

        async def run() -> None:
            async with self.client("probe") as client:
                for one in [asyncio.create_task(try_one(client, tp)) for tp in tps]:
                    await one

        await self.cluster.run_client(run(), "probe")


def outcome_of(problem: ClientError, *, is_first: bool) -> Outcome:
    """A batch that a later attempt was refused with may have been written by an earlier one."""
    if is_first and isinstance(problem, Refused) and problem.code in _REFUSALS:
        return Outcome.REFUSED
    return Outcome.UNKNOWN


def _bytes(name: str, number: int) -> bytes:
    return value_of(name, number).encode()


def _text(record: Record) -> str:
    return (record.value or b"").decode()
