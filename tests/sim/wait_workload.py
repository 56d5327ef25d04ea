"""Producers of a simulation whose records wait: some are cancelled, some are in transactions.

Others send records that come again and again, and cancel them after a while.
"""

import asyncio
import contextlib
from random import Random
from typing import Final

from histories.final import read_released
from histories.history import (
    Outcome,
    Recurring,
    Removal,
    Scheduled,
    Transaction,
    Waits,
    value_of,
)
from histories.recurrences import SERVED_MS
from ottla.client.errors import ClientError
from ottla.client.producer import IdempotentProducer
from ottla.client.transactional_producer import TransactionalProducer
from ottla.client.waiting_records import (
    WaitingChoice,
    cancel,
    count_waiting,
    find_waiting,
    list_waiting,
)
from ottla.model import TopicPartition
from ottla.records.batch import Record, pack
from ottla.records.hidden_records import CANCEL, CRON, DELAY, DELIVER_AT, TIMEZONE
from sim.fast_cron import EVERY_MAX, MINUTE_MS, draw_recurrence
from sim.workload import CountingClient, Workload, outcome_of

TOPIC: Final = "reminders"
_PARTITIONS: Final = 3
_PAUSE_S: Final = 0.04
_DELAY_MAX_MS: Final = 8000
_CANCEL_SHARE: Final = 0.15
_ASK_S: Final = 0.5
_RECURRING_PAUSE_S: Final = 0.8
_RECURRING_MAX: Final = 4  # schedules of a producer at a time, about
_HORIZON_MS: Final = 400_000  # behind the end of every simulation
# After the faults, with producers: a schedule that has ended without a word is found by then.
RECURRING_END_S: Final = (EVERY_MAX * MINUTE_MS + SERVED_MS) / 1000 + 1.0
_SILENCE_S: Final = 2.0  # after everything was cancelled


class WaitWorkload:
    """Owner of the history of what waits; tasks and clients are those of the workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._waits = workload.history.waits = Waits()
        self.tps = [TopicPartition(TOPIC, index) for index in range(_PARTITIONS)]

    async def begin(self) -> None:
        """Create the topic, and start producers."""
        await self._workload.create_topics({TOPIC: _PARTITIONS}, {"delay.enable": "true"})
        for number in range(3):
            self._workload.start(f"scheduler{number}", self._schedule)
        self._workload.start("transactor", self._transact)
        for number in range(2):
            self._workload.start(f"recurrer{number}", self._recur)

    # Producers

    async def _schedule(self, name: str, rng: Random) -> None:
        """Send records, and cancel some that may still wait."""
        number = 0
        accepted: list[Scheduled] = []
        async with self._workload.client(name) as client:
            while not self._workload.is_stopping:
                with contextlib.suppress(ClientError):
                    producer = await IdempotentProducer.open(client)
                    while not self._workload.is_stopping:
                        await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                        number += 1
                        accepted.append(await self._send(client, producer, name, number, rng))
                        if rng.random() < _CANCEL_SHARE:
                            chosen = accepted.pop(rng.randrange(len(accepted)))
                            await self._cancel(client, producer, chosen)

    async def _send(
        self,
        client: CountingClient,
        producer: IdempotentProducer,
        name: str,
        number: int,
        rng: Random,
    ) -> Scheduled:
        tp, value = rng.choice(self.tps), value_of(name, number)
        record, due_ms, is_exact = self._draw(value, rng)
        attempts_before, outcome, ticket, acked_ms = client.attempt_count, Outcome.DONE, None, None
        try:
            ticket = await producer.write(tp, [record])
            acked_ms = self._cluster.loop.now_ms()
            self._workload.acked_count += 1
        except ClientError as problem:
            is_first = client.attempt_count == attempts_before + 1
            outcome = outcome_of(problem, is_first=is_first)
            raise
        finally:
            scheduled = Scheduled(value, tp, due_ms, is_exact, outcome, ticket, acked_ms)
            self._note(scheduled)
        return scheduled

    def _draw(self, value: str, rng: Random) -> tuple[Record, int, bool]:
        """A record, its earliest due time, and whether that is when it is due."""
        now_ms = self._cluster.loop.now_ms()
        delay_ms = rng.randrange(_DELAY_MAX_MS)
        due_ms, is_exact = now_ms + delay_ms, True
        kind = rng.random()
        headers: tuple[tuple[str, bytes], ...] = ((DELIVER_AT, b"%d" % due_ms),)
        if kind < 0.2:
            headers, due_ms, is_exact = (), 0, False
        elif kind < 0.4:
            headers, is_exact = ((DELAY, b"%d" % delay_ms),), False
        record = Record(timestamp_ms=now_ms, value=value.encode(), headers=headers)
        return record, due_ms, is_exact

    def _note(self, scheduled: Scheduled) -> None:
        self._waits.scheduled.append(scheduled)
        self._cluster.trace("scheduled", scheduled)

    async def _cancel(
        self, client: CountingClient, producer: IdempotentProducer, chosen: Scheduled
    ) -> None:
        """Cancel a record, unless its ticket is not known; one that was delivered is refused."""
        if chosen.ticket is None:
            return
        header = (CANCEL, b"%d" % chosen.ticket)
        record = Record(timestamp_ms=self._cluster.loop.now_ms(), headers=(header,))
        attempts_before, outcome = client.attempt_count, Outcome.DONE
        try:
            await producer.write(chosen.tp, [record])
        except ClientError as problem:
            is_first = client.attempt_count == attempts_before + 1
            outcome = outcome_of(problem, is_first=is_first)
            raise
        finally:
            self._waits.cancels[chosen.value] = outcome
            self._cluster.trace("cancelled", chosen.value, outcome.value)

    # Records that come again

    async def _recur(self, name: str, rng: Random) -> None:
        """Send records that come again, and cancel those that have come for a while."""
        number = 0
        accepted: list[Recurring] = []
        async with self._workload.client(name) as client:
            while not self._workload.is_stopping:
                with contextlib.suppress(ClientError):
                    producer = await IdempotentProducer.open(client)
                    while not self._workload.is_stopping:
                        await asyncio.sleep(rng.expovariate(1 / _RECURRING_PAUSE_S))
                        number += 1
                        value = value_of(name, number)
                        accepted.append(await self._send_recurring(client, producer, value, rng))
                        if len(accepted) > _RECURRING_MAX:
                            chosen = accepted.pop(rng.randrange(len(accepted)))
                            await self._remove(client, producer, chosen, rng)

    async def _send_recurring(
        self, client: CountingClient, producer: IdempotentProducer, value: str, rng: Random
    ) -> Recurring:
        tp, drawn, loop = rng.choice(self.tps), draw_recurrence(rng), self._cluster.loop
        sent_ms = loop.now_ms()
        headers: tuple[tuple[str, bytes], ...] = ((CRON, drawn.cron.encode()),)
        if drawn.zone is not None:
            headers = (*headers, (TIMEZONE, drawn.zone.encode()))
        record = Record(timestamp_ms=sent_ms, value=value.encode(), headers=headers)
        attempts_before, outcome, ticket, acked_ms = client.attempt_count, Outcome.DONE, None, None
        try:
            ticket = await producer.write(tp, [record])
            acked_ms = loop.now_ms()
            self._workload.acked_count += 1
        except ClientError as problem:
            is_first = client.attempt_count == attempts_before + 1
            outcome = outcome_of(problem, is_first=is_first)
            raise
        finally:
            due_ms = drawn.due_ms(sent_ms, sent_ms + _HORIZON_MS)
            sent = Recurring(value, tp, due_ms, sent_ms, outcome, ticket, acked_ms)
            self._waits.recurring.append(sent)
            self._cluster.trace("recurring", value, tp, drawn, outcome.value, ticket)
        return sent

    async def _remove(
        self,
        client: CountingClient,
        producer: IdempotentProducer,
        chosen: Recurring,
        rng: Random,
    ) -> None:
        """Cancel a schedule by its first ticket, or by that of its next occurrence."""
        if chosen.ticket is None:
            return
        ticket, loop = chosen.ticket, self._cluster.loop
        if rng.random() < 0.5:
            following = await find_waiting(client, chosen.tp, [ticket])
            ticket = following[0].ticket.offset if following else ticket
        begun_ms = loop.now_ms()
        record = Record(timestamp_ms=begun_ms, headers=((CANCEL, b"%d" % ticket),))
        attempts_before, outcome, offset = client.attempt_count, Outcome.DONE, None
        try:
            offset = await producer.write(chosen.tp, [record])
        except ClientError as problem:
            is_first = client.attempt_count == attempts_before + 1
            outcome = outcome_of(problem, is_first=is_first)
            raise
        finally:
            self._waits.removals[chosen.value] = Removal(begun_ms, outcome, offset)
            self._cluster.trace("removed", chosen.value, ticket, outcome.value, offset)

    async def _remove_all(self, client: CountingClient) -> str:
        """Cancel everything that comes again; returns why that failed, or nothing."""
        choice = WaitingChoice(schedules_only=True)
        try:
            for found in await list_waiting(client, self.tps, choice):
                assert found.schedule is not None, "only schedules were asked for"
                now_ms = self._cluster.loop.now_ms()
                outcome = await cancel(client, TOPIC, [found.schedule], now_ms)
                self._cluster.trace("removed", found.schedule, outcome[found.schedule].value)
            left = await list_waiting(client, self.tps, choice)
        except ClientError as problem:
            return str(problem)
        return ", ".join(f"schedule {one.schedule}" for one in left)

    # Transactions

    async def _transact(self, name: str, rng: Random) -> None:
        """Send records in transactions, and abort some of them."""
        count = 0
        async with self._workload.client(name) as client:
            while not self._workload.is_stopping:
                with contextlib.suppress(ClientError):
                    producer = await TransactionalProducer.open(client, name, timeout_ms=8000)
                    while not self._workload.is_stopping:
                        await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                        count += 1
                        await self._send_together(producer, name, count, rng)

    async def _send_together(
        self, producer: TransactionalProducer, name: str, count: int, rng: Random
    ) -> None:
        transaction = f"{name}-{count}"
        for item in range(rng.randint(1, 3)):
            tp, value = rng.choice(self.tps), value_of(name, count * 10 + item)
            record, due_ms, _ = self._draw(value, rng)
            outcome = Outcome.UNKNOWN
            try:
                await producer.write_packed(tp, pack([record]))
                outcome = Outcome.DONE
            finally:
                self._note(Scheduled(value, tp, due_ms, False, outcome, transaction=transaction))
        is_commit = rng.random() < 0.7
        outcome = Outcome.UNKNOWN
        try:
            await (producer.commit() if is_commit else producer.abort())
            outcome = Outcome.DONE
        finally:
            self._workload.history.transactions.append(Transaction(transaction, is_commit, outcome))
            self._cluster.trace("transaction", transaction, is_commit, outcome.value)

    # The end

    async def finish(self, within_s: float) -> None:
        """Stop producers, wait until nothing waits, and read what was delivered."""
        await self._workload.stop()
        await self._cluster.run_client(self._read(within_s), "checker")

    async def _read(self, within_s: float) -> None:
        loop = self._cluster.loop
        end_s = loop.time() + within_s
        async with self._workload.client("checker") as client:
            self._waits.end_ms = loop.now_ms()
            while True:
                if not await self._remove_all(client) or loop.time() > end_s:
                    break
                await asyncio.sleep(_ASK_S)
            self._waits.ended_ms = loop.now_ms()
            while True:
                self._waits.unfinished = await self._unfinished(client)
                if not self._waits.unfinished or loop.time() > end_s:
                    break
                await asyncio.sleep(_ASK_S)
            await asyncio.sleep(_SILENCE_S)
            found = await read_released(client, self.tps)
        probes = {sent.value for sent in self._workload.history.sent}
        self._waits.released = [one for one in found if one.value not in probes]
        final = self._workload.history.final
        for one in found:
            if one.value in probes:
                final.setdefault(one.tp, []).append((one.offset, one.value))
        self._workload.history.final_committed = final

    async def _unfinished(self, client: CountingClient) -> str:
        """What still waits; nothing if nothing does."""
        try:
            counts = await count_waiting(client, self.tps)
        except ClientError as problem:
            return str(problem)
        left = [one for one in counts if one.waiting or one.undecided]
        return ", ".join(map(str, left))
