"""What the driver does when all tasks of a batch are done: decide, and end their transactions.

`decisions` says what to do; here it is asked for and done. Everything uses requests that every
Kafka since 3.0 knows: ListTransactions, DescribeTransactions, InitProducerId, EndTxn.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError, Refused
from ottla.client.groups import list_groups, stable_offsets
from ottla.client.transactional_producer import ProducerIdentity, end_transaction
from ottla.client.transactions import describe_transactions, fence_producer, list_transactions
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.spark.blocking_client import Link
from ottla.spark.decisions import (
    BatchRefused,
    Decide,
    Decision,
    History,
    Nothing,
    Part,
    Repeat,
    Revoke,
    Transaction,
    Verdict,
    check_open,
    encode_decision,
    finish,
    histories_of,
    history_of,
    judge,
    slot_key,
    still_open_of,
)
from ottla.spark.writing import Written

Histories = Mapping[str, History]  # by sink

_ABORT_PATIENCE_S: Final = 5.0
_READABLE_PAUSE_S: Final = 0.01


class StreamBatch:
    """Owns one micro-batch of a stream, from open transactions to rows that count."""

    def __init__(
        self, link: Link, batch: int, messages: Sequence[Written], accepted: int | None
    ) -> None:
        self._link = link
        self._client = link.client
        self._batch = batch
        self._owner = messages[0].owner
        self._sink = messages[0].sink
        self._parts = [message.part for message in messages]
        self._producers = producers_of(self._parts)
        self._accepted = accepted

    async def run(self) -> None:
        """Do everything; raises, with nothing of it counted, when the batch is refused."""
        match await self.judge():
            case Decide(decision):
                await self.decide(decision)
                await self.end(decision)
                self.note_finished(decision)
            case Repeat(decision):
                await self.repeat(decision)
                self.note_finished(decision)
            case Nothing():
                pass

    def note_finished(self, decision: Decision) -> None:
        """Remember that nothing is left to be committed.

        Not waited for: without it, whoever comes next asks what has become of each transaction.
        """
        if decision.producers:
            self._link.start_in_background(self._remember_finished(decision))

    async def judge(self) -> Verdict:
        """What to do. What nobody will ever decide about is aborted: readers wait behind it."""
        history, elsewhere = await self._clear_away()
        is_first = not history and any(part.content.rows for part in self._parts)
        last_of_old_version = (
            await last_batch_of_old_version(self._client, self._sink) if is_first else None
        )
        try:
            verdict = judge(
                self._batch,
                self._parts,
                history,
                elsewhere=elsewhere,
                accepted=self._accepted,
                last_of_old_version=last_of_old_version,
            )
        except BatchRefused:
            await self._abort_undecided(history)
            await self._carry_out(history, elsewhere)
            raise
        if not isinstance(verdict, Decide):
            await self._abort_undecided(history)
        return verdict

    async def decide(self, decision: Decision) -> None:
        """The moment from which on the batch counts. Not known to have failed when this raises."""
        found, values = await asyncio.gather(
            describe(self._client, decision.producers), self._link.state.read(self._owner)
        )
        history, elsewhere = self._histories(values)
        try:
            check_open(decision.producers, found, SystemClock().now_ms())
            judge(self._batch, self._parts, history, elsewhere=elsewhere)  # still undecided
        except BatchRefused:
            await self._abort_undecided(history)
            raise
        await self._remember(decision)

    async def end(self, decision: Decision) -> None:
        """Commit what was decided."""
        await asyncio.gather(
            *(end_transaction(self._client, one, is_committed=True) for one in decision.producers)
        )

    async def repeat(self, decision: Decision) -> None:
        """Commit what is open of a batch that was decided before."""
        if not decision.producers:
            return
        found = await describe(self._client, decision.producers)
        todo = finish(decision, found, accepted=self._accepted)
        if isinstance(todo, Revoke):
            await self._link.state.write(self._owner, slot_key(self._sink, self._batch), None)
            raise BatchRefused(todo.reason)
        await self.end(Decision(decision.batch, decision.content, todo.producers))

    async def _clear_away(self) -> tuple[History, Histories]:
        """Abort every transaction of this query that no task of this batch has told us of."""
        values, listed = await asyncio.gather(
            self._link.state.read(self._owner), list_transactions(self._client, states=["Ongoing"])
        )
        history, elsewhere = self._histories(values)
        decided = [
            one
            for each in (history, *elsewhere.values())
            for decision in each.values()
            for one in decision.producers
        ]
        kept = {one.transactional_id for one in [*self._producers, *decided]}
        ids = [one.transactional_id for one in listed]
        for sink in {self._sink, *elsewhere}:
            await fence_losers(self._client, sink, ids, kept)
        return history, elsewhere

    def _histories(self, values: Mapping[bytes, bytes]) -> tuple[History, Histories]:
        """The decisions about this sink, and those about former sinks of the query."""
        elsewhere = histories_of(self._owner, values)
        return elsewhere.pop(self._sink, {}), elsewhere

    async def _abort_undecided(self, history: History) -> None:
        """Abort what the tasks of this batch have left open, but for what a decision names."""
        decided = {one for decision in history.values() for one in decision.producers}
        await abort_all(self._client, [one for one in self._producers if one not in decided])

    async def _carry_out(self, history: History, elsewhere: Histories) -> None:
        """Commit what is open of every decision, though this batch is refused.

        Its user is told that what was decided counts, and may take days to choose a way on: a
        broker aborts what is open within minutes. Raises if that has happened to this batch.
        """
        others = [one for each in elsewhere.values() for one in each.values()]
        others += [one for one in history.values() if one.batch != self._batch]
        for decision in others:
            found = await describe(self._client, decision.producers)
            still_open = still_open_of(decision.producers, found)
            await self.end(Decision(decision.batch, decision.content, still_open))
        if (decision_of_this := history.get(self._batch)) is not None:
            await self.repeat(decision_of_this)
            await self._remember_finished(decision_of_this)

    async def _remember(self, decision: Decision) -> None:
        key = slot_key(self._sink, decision.batch)
        await self._link.state.write(self._owner, key, encode_decision(decision))

    async def _remember_finished(self, decision: Decision) -> None:
        with suppress(ClientError):
            await self._remember(decision.finished())


def abort_batch(link: Link, messages: Sequence[Written]) -> None:
    """Abort what the tasks of a failed job have left open; what cannot be aborted times out."""

    async def abort() -> None:
        parts = [message.part for message in messages]
        producers = producers_of(parts)
        with suppress(ClientError):
            await abort_all(link.client, producers)
            listed = await list_transactions(link.client, states=["Ongoing"])
            names = [one.transactional_id for one in listed]
            for owner, sink in {(message.owner, message.sink) for message in messages}:
                values = await link.state.read(owner)
                decisions = history_of(sink, values).values()
                decided = {one.transactional_id for each in decisions for one in each.producers}
                await fence_losers(link.client, sink, names, decided)

    link.start(abort()).result()


def commit_job(link: Link, messages: Sequence[Written]) -> None:
    """Commit what all tasks of a batch job have written; returns when it can be read.

    Nobody repeats a job, so there is nothing to remember: all or nothing of it counts, unless the
    driver dies while it commits.
    """
    producers = producers_of([message.part for message in messages])
    if producers:
        link.start(_commit_job(link.client, messages[0].sink, producers)).result()


async def _commit_job(client: Client, sink: str, producers: Sequence[ProducerIdentity]) -> None:
    listed = await list_transactions(client, states=["Ongoing"])
    kept = {one.transactional_id for one in producers}
    await fence_losers(client, sink, (one.transactional_id for one in listed), kept)
    try:
        check_open(producers, await describe(client, producers), SystemClock().now_ms())
    except BatchRefused:
        await abort_all(client, producers)
        raise
    await asyncio.gather(*(end_transaction(client, one, is_committed=True) for one in producers))
    await _wait_readable(client, producers)


async def _wait_readable(client: Client, producers: Iterable[ProducerIdentity]) -> None:
    """A commit is answered before every partition has heard of it."""
    waiting = list(producers)
    give_up_s = asyncio.get_running_loop().time() + client.timeout_s
    while waiting:
        found = await describe(client, waiting)
        waiting = [
            one
            for one in waiting
            if found.get(one.transactional_id) is not None
            and found[one.transactional_id].state == "PrepareCommit"
        ]
        if asyncio.get_running_loop().time() > give_up_s:
            return  # it counts, and readers will see it
        if waiting:
            await asyncio.sleep(_READABLE_PAUSE_S)


# What coordinators are asked and told


def producers_of(parts: Iterable[Part]) -> tuple[ProducerIdentity, ...]:
    """Who has left a transaction open."""
    return tuple(part.producer for part in parts if part.producer is not None)


async def describe(client: Client, producers: Iterable[ProducerIdentity]) -> dict[str, Transaction]:
    """What has become of these producers' transactions."""
    found = await describe_transactions(client, (one.transactional_id for one in producers))
    return {
        name: Transaction(
            state=one.state,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            started_ms=one.started_ms,
            timeout_ms=one.timeout_ms,
        )
        for name, one in found.items()
    }


async def abort_all(client: Client, producers: Sequence[ProducerIdentity]) -> None:
    """Abort those that are open; the others have been aborted by somebody else."""
    if not producers:
        return
    still_open = still_open_of(producers, await describe(client, producers))
    await asyncio.gather(
        *(
            end_transaction(client, one, is_committed=False, timeout_s=_ABORT_PATIENCE_S)
            for one in still_open
        ),
        return_exceptions=True,  # what cannot be aborted times out
    )


async def fence_losers(client: Client, sink: str, open_ids: Iterable[str], kept: set[str]) -> None:
    """Abort the open transactions of a sink that are not kept: of attempts that failed or lost."""
    own = re.compile(re.escape(sink) + r"-\d+(\.\d+)?")  # without a dot: of an older version
    losers = [one for one in open_ids if own.fullmatch(one) and one not in kept]
    for loser in losers:
        try:
            await fence_producer(client, loser)
        except Refused as problem:
            if problem.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise


async def last_batch_of_old_version(client: Client, sink: str) -> int | None:
    """The last micro-batch of which a version before decisions has written any part.

    It noted the number of the batch as an offset of a group for each task, for as long as the
    broker's offsets.retention.minutes.
    """
    own = re.compile(re.escape(f"__ottla_sink-{sink}-") + r"\d+")
    groups = [one.group_id for one in await list_groups(client) if own.fullmatch(one.group_id)]
    noted = await asyncio.gather(*(stable_offsets(client, group) for group in groups))
    return max((batch for offsets in noted for batch in offsets.values()), default=None)
