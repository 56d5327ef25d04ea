"""Commits a batch in the driver when all of its tasks are done: decides, and ends transactions.

`batch_decisions` chooses the action; this module sends the requests. All of them exist since Kafka
3.0: ListTransactions, DescribeTransactions, InitProducerId, EndTxn.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError, Refused
from ottla.client.group_offsets import stable_offsets
from ottla.client.transactional_producer import ProducerIdentity, end_transaction
from ottla.client.transactions import describe_transactions, fence_producer, list_transactions
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.spark.batch_decisions import (
    BatchRefused,
    CommitAction,
    Decision,
    History,
    NothingToCommit,
    RepeatDecision,
    RevokeDecision,
    TaskResult,
    Transaction,
    WriteDecision,
    check_open,
    choose_action,
    encode_decision,
    histories_of,
    history_of,
    resume_decision,
    slot_key,
    still_open_of,
)
from ottla.spark.blocking_client import BlockingClient
from ottla.spark.write_task import WrittenInTransaction

Histories = Mapping[str, History]  # by sink

_ABORT_TIMEOUT_S: Final = 5.0
_READABLE_PAUSE_S: Final = 0.01


class StreamBatchCommit:
    """Owns the commit of one micro-batch, from open transactions to committed rows."""

    def __init__(
        self,
        blocking: BlockingClient,
        batch: int,
        messages: Sequence[WrittenInTransaction],
        accepted: int | None,
    ) -> None:
        self._blocking = blocking
        self._client = blocking.client
        self._batch = batch
        self._owner = messages[0].owner
        self._sink = messages[0].sink
        self._parts = [message.part for message in messages]
        self._producers = producers_of(self._parts)
        self._accepted = accepted

    async def run(self) -> None:
        """Commit the batch; raises `BatchRefused`, with nothing committed, if it must not be."""
        match await self.choose_action():
            case WriteDecision(decision):
                await self.write_decision(decision)
                await self.commit_transactions(decision)
                self.note_finished(decision)
            case RepeatDecision(decision):
                await self.commit_remaining(decision)
                self.note_finished(decision)
            case NothingToCommit():
                pass

    def note_finished(self, decision: Decision) -> None:
        """Record that all transactions of the decision are committed.

        In the background: without this record the next driver describes each transaction instead.
        """
        if decision.producers:
            self._blocking.submit_in_background(self._remember_finished(decision))

    async def choose_action(self) -> CommitAction:
        """Choose the action; abort transactions without a decision, which readers wait for."""
        history, former_sinks = await self._abort_unreported()
        is_first = not history and any(part.content.rows for part in self._parts)
        last_of_old_version = (
            await last_batch_of_old_version(self._client, self._sink) if is_first else None
        )
        try:
            action = choose_action(
                self._batch,
                self._parts,
                history,
                former_sinks=former_sinks,
                accepted=self._accepted,
                last_of_old_version=last_of_old_version,
            )
        except BatchRefused:
            await self._abort_undecided(history)
            await self._finish_decisions(history, former_sinks)
            raise
        if not isinstance(action, WriteDecision):
            await self._abort_undecided(history)
        return action

    async def write_decision(self, decision: Decision) -> None:
        """Write the decision: from now on the batch counts. If this raises, it may count or not."""
        found, values = await asyncio.gather(
            describe(self._client, decision.producers), self._blocking.state.read(self._owner)
        )
        history, former_sinks = self._histories(values)
        try:
            check_open(decision.producers, found, SystemClock().now_ms())
            choose_action(
                self._batch, self._parts, history, former_sinks=former_sinks
            )  # still undecided
        except BatchRefused:
            await self._abort_undecided(history)
            raise
        await self._remember(decision)

    async def commit_transactions(self, decision: Decision) -> None:
        """Commit the transactions of a decision."""
        await asyncio.gather(
            *(end_transaction(self._client, one, is_committed=True) for one in decision.producers)
        )

    async def commit_remaining(self, decision: Decision) -> None:
        """Commit the transactions that are still open of a batch that was decided before."""
        if not decision.producers:
            return
        found = await describe(self._client, decision.producers)
        todo = resume_decision(decision, found, accepted=self._accepted)
        if isinstance(todo, RevokeDecision):
            await self._blocking.state.write(self._owner, slot_key(self._sink, self._batch), None)
            raise BatchRefused(todo.reason)
        await self.commit_transactions(Decision(decision.batch, decision.content, todo.producers))

    async def _abort_unreported(self) -> tuple[History, Histories]:
        """Abort open transactions of this query that no task of this batch has reported.

        Returns the decisions about this sink and about former sinks.
        """
        values, listed = await asyncio.gather(
            self._blocking.state.read(self._owner),
            list_transactions(self._client, states=["Ongoing"]),
        )
        history, former_sinks = self._histories(values)
        decided = [
            one
            for each in (history, *former_sinks.values())
            for decision in each.values()
            for one in decision.producers
        ]
        kept = {one.transactional_id for one in [*self._producers, *decided]}
        ids = [one.transactional_id for one in listed]
        for sink in {self._sink, *former_sinks}:
            await fence_losers(self._client, sink, ids, kept)
        return history, former_sinks

    def _histories(self, values: Mapping[bytes, bytes]) -> tuple[History, Histories]:
        """The decisions about this sink, and those about former sinks of the query."""
        former_sinks = histories_of(self._owner, values)
        return former_sinks.pop(self._sink, {}), former_sinks

    async def _abort_undecided(self, history: History) -> None:
        """Abort the transactions of this batch's tasks, except those that a decision names."""
        decided = {one for decision in history.values() for one in decision.producers}
        await abort_all(self._client, [one for one in self._producers if one not in decided])

    async def _finish_decisions(self, history: History, former_sinks: Histories) -> None:
        """Commit the open transactions of every decision, though this batch is refused.

        The error says that decided batches count, and its user may take days to react: a broker
        aborts open transactions within minutes. Raises if that has happened to this batch.
        """
        others = [one for each in former_sinks.values() for one in each.values()]
        others += [one for one in history.values() if one.batch != self._batch]
        for decision in others:
            found = await describe(self._client, decision.producers)
            still_open = still_open_of(decision.producers, found)
            await self.commit_transactions(Decision(decision.batch, decision.content, still_open))
        if (decision_of_this := history.get(self._batch)) is not None:
            await self.commit_remaining(decision_of_this)
            await self._remember_finished(decision_of_this)

    async def _remember(self, decision: Decision) -> None:
        key = slot_key(self._sink, decision.batch)
        await self._blocking.state.write(self._owner, key, encode_decision(decision))

    async def _remember_finished(self, decision: Decision) -> None:
        with suppress(ClientError):
            await self._remember(decision.finished())


def abort_batch(blocking: BlockingClient, messages: Sequence[WrittenInTransaction]) -> None:
    """Abort the transactions of a failed job's tasks; those that cannot be aborted time out."""

    async def abort() -> None:
        parts = [message.part for message in messages]
        producers = producers_of(parts)
        with suppress(ClientError):
            await abort_all(blocking.client, producers)
            listed = await list_transactions(blocking.client, states=["Ongoing"])
            names = [one.transactional_id for one in listed]
            for owner, sink in {(message.owner, message.sink) for message in messages}:
                values = await blocking.state.read(owner)
                decisions = history_of(sink, values).values()
                decided = {one.transactional_id for each in decisions for one in each.producers}
                await fence_losers(blocking.client, sink, names, decided)

    blocking.submit(abort()).result()


def commit_job(blocking: BlockingClient, messages: Sequence[WrittenInTransaction]) -> None:
    """Commit the transactions of all tasks of a batch job; returns when readers can see them.

    Spark never repeats a job, so no decision is stored: all or nothing of it counts, unless the
    driver dies while it commits.
    """
    producers = producers_of([message.part for message in messages])
    if producers:
        blocking.submit(_commit_job(blocking.client, messages[0].sink, producers)).result()


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
    """Wait for the markers: EndTxn responds before every partition has its marker."""
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
            return  # committed; readers will see it
        if waiting:
            await asyncio.sleep(_READABLE_PAUSE_S)


# Requests to transaction coordinators


def producers_of(parts: Iterable[TaskResult]) -> tuple[ProducerIdentity, ...]:
    """The producers that have left a transaction open."""
    return tuple(part.producer for part in parts if part.producer is not None)


async def describe(client: Client, producers: Iterable[ProducerIdentity]) -> dict[str, Transaction]:
    """The transactions of these producers, as their coordinators describe them."""
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
    """Abort the open transactions of these producers; the others have ended already."""
    if not producers:
        return
    still_open = still_open_of(producers, await describe(client, producers))
    await asyncio.gather(
        *(
            end_transaction(client, one, is_committed=False, timeout_s=_ABORT_TIMEOUT_S)
            for one in still_open
        ),
        return_exceptions=True,  # a transaction that cannot be aborted times out
    )


async def fence_losers(client: Client, sink: str, open_ids: Iterable[str], kept: set[str]) -> None:
    """Abort the open transactions of a sink that are not kept: attempts that failed or lost."""
    own = re.compile(re.escape(sink) + r"-\d+(\.\d+)?")  # without a dot: of an older version
    losers = [one for one in open_ids if own.fullmatch(one) and one not in kept]
    for loser in losers:
        try:
            await fence_producer(client, loser)
        except Refused as problem:
            if problem.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise


async def last_batch_of_old_version(client: Client, sink: str) -> int | None:
    """The last micro-batch of which a version without decisions has written any part.

    That version committed the batch number as an offset of a group for each task; the broker
    keeps it for offsets.retention.minutes.
    """
    from ottla.client.groups import list_groups  # noqa: PLC0415  # only first batches need it

    own = re.compile(re.escape(f"__ottla_sink-{sink}-") + r"\d+")
    groups = [one.group_id for one in await list_groups(client) if own.fullmatch(one.group_id)]
    noted = await asyncio.gather(*(stable_offsets(client, group) for group in groups))
    return max((batch for offsets in noted for batch in offsets.values()), default=None)
