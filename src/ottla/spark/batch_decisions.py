"""Chooses the action for a micro-batch: commit, repeat or refuse. Pure, without I/O.

A batch is decided once. Its tasks leave their transactions open; the driver writes one decision,
which names the transactions and the content, and then commits them. A driver that runs the batch
again finds the decision or finds none:

- none: nothing of the batch counts yet. Open transactions are aborted, and the batch is written
  again, in whatever tasks it has now.
- a decision: the batch is written. Its transactions are committed if they are still open, and the
  content of this run is compared with the content that was decided.

A sink keeps its last `SLOTS` decisions, each under its own key (the number of the batch modulo
`SLOTS`), so that a driver that was delayed can overwrite its own batch only, never a later one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ottla.client.transactional_producer import ProducerIdentity
from ottla.model import ProducerEpoch, ProducerId
from ottla.spark.content_digest import Content, sum_contents

SLOTS: Final = 32
_FORMAT: Final = 1  # of a decision's JSON
_SINK: Final = "sink"  # the prefix of keys
_MARGIN_MS: Final = 10_000  # of a transaction's timeout that must be left when it is decided
_GRACE_MS: Final = 15_000  # brokers look for expired transactions every 10 s


class BatchRefused(Exception):
    """A batch that must be neither written nor skipped unless its user says so."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The content and producer that one task reports; without a producer it wrote nothing."""

    content: Content
    producer: ProducerIdentity | None = None
    found_decided: bool = False  # so it has written nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """A batch is what these producers wrote; no producers once all have been committed."""

    batch: int
    content: Content
    producers: tuple[ProducerIdentity, ...] = ()

    def finished(self) -> "Decision":
        """The same, once every transaction has been committed."""
        return replace(self, producers=())


History = Mapping[int, Decision]  # by the number of the batch
_NO_FORMER_SINKS: Final[Mapping[str, History]] = {}


# Storage


def slot_key(sink: str, batch: int) -> bytes:
    """The key of the decision about a batch."""
    return f"{_SINK} {sink} {batch % SLOTS}".encode()


def encode_decision(decision: Decision) -> bytes:
    """A decision as JSON."""
    return json.dumps(
        {
            "format": _FORMAT,
            "batch": decision.batch,
            "rows": decision.content.rows,
            "digest": f"{decision.content.digest:016x}",
            "producers": [
                [one.transactional_id, one.producer_id, one.producer_epoch]
                for one in decision.producers
            ],
        }
    ).encode()


def decode_decision(value: bytes) -> Decision:
    """The inverse of `encode_decision`; raises `BatchRefused` for other bytes."""
    try:
        found = json.loads(value)
        if found["format"] != _FORMAT:
            raise BatchRefused(
                f"a decision was written in format {found['format']}, which this version does not"
                " know: use the version that wrote it, or a later one"
            )
        return Decision(
            int(found["batch"]),
            Content(int(found["rows"]), int(found["digest"], 16)),
            tuple(
                ProducerIdentity(str(name), ProducerId(int(id_)), ProducerEpoch(int(epoch)))
                for name, id_, epoch in found["producers"]
            ),
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise BatchRefused(f"a decision cannot be read ({problem}): {value[:200]!r}") from None


def history_of(sink: str, values: Mapping[bytes, bytes]) -> dict[int, Decision]:
    """The stored decisions of a sink."""
    kept = (values.get(slot_key(sink, slot)) for slot in range(SLOTS))
    decisions = [decode_decision(value) for value in kept if value is not None]
    return {one.batch: one for one in decisions}


def histories_of(owner: str, values: Mapping[bytes, bytes]) -> dict[str, dict[int, Decision]]:
    """The decisions by sink of a query, including sinks of topics that it wrote to before."""
    own = f"{_SINK} {owner}-".encode()
    histories = dict[str, dict[int, Decision]]()
    for key in (key for key in values if key.startswith(own)):
        sink = key.decode().partition(" ")[2].rpartition(" ")[0]
        decision = decode_decision(values[key])
        histories.setdefault(sink, {})[decision.batch] = decision
    return histories


def is_decided(batch: int, history: History) -> bool:
    """True if this batch or a later one was decided: its tasks have nothing to write."""
    return bool(history) and batch <= max(history)


# Actions of the driver


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """The batch has no rows."""


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write this decision, then commit its transactions."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class RepeatDecision:
    """Decided before: commit its transactions that are still open."""

    decision: Decision


CommitAction = NothingToCommit | WriteDecision | RepeatDecision


def choose_action(
    batch: int,
    parts: Sequence[TaskResult],
    history: History,
    *,
    former_sinks: Mapping[str, History] = _NO_FORMER_SINKS,
    accepted: int | None = None,
    last_of_old_version: int | None = None,
) -> CommitAction:
    """The action for a batch whose tasks are done; `BatchRefused` if there is none.

    `former_sinks` are the decisions of sinks from when the query wrote to another topic.
    `accepted` is a batch that its user declares written, whatever its content is now.
    `last_of_old_version` is the last batch of which an older version wrote any part.
    """
    content = sum_contents(part.content for part in parts)
    producers = tuple(part.producer for part in parts if part.producer is not None)
    decided = history.get(batch)
    if producers and is_decided(batch, history):
        raise BatchRefused(
            f"micro-batch {batch} was decided by another driver while this one wrote it: two"
            " queries run on one checkpoint. Stop one of them"
        )
    if any(part.found_decided for part in parts) and not is_decided(batch, history):
        raise BatchRefused(
            f"micro-batch {batch} was decided when its tasks began and is not any more: nothing was"
            " written. Start the query again, and the batch is written again"
        )
    if decided is not None:
        if decided.content == content or accepted == batch:
            return RepeatDecision(decided)
        raise BatchRefused(_explain_other(batch, content, decided.content))
    is_of_old_version = last_of_old_version is not None and last_of_old_version >= batch
    former = next((sink for sink, one in former_sinks.items() if is_decided(batch, one)), None)
    if not content.rows or (
        accepted == batch and (is_of_old_version or former or is_decided(batch, history))
    ):
        return NothingToCommit()
    if former is not None:
        raise BatchRefused(_explain_former(batch, former))
    if is_decided(batch, history):
        raise BatchRefused(_explain_older(batch, content, max(history)))
    if is_of_old_version:
        raise BatchRefused(_explain_upgrade(batch))
    assert batch not in history, "a decision is written once"
    return WriteDecision(Decision(batch, content, producers))


def _explain_other(batch: int, now: Content, then: Content) -> str:
    return (
        f"micro-batch {batch} was written before, with other content: {_describe(then)} then,"
        f" {_describe(now)} now. Nothing was written. Either the checkpoint is not the one that the"
        " sink was last written with (an older copy, or files are missing): restore the right one,"
        " or begin with a new checkpointLocation and the startingOffsets you want. Or the batch is"
        " the same and its rows come out differently (changed code, rand(), uuid()): to let what"
        f" is written count and go on behind it, start once with the sink's option"
        f" acceptBatch={batch}"
    )


def _explain_older(batch: int, now: Content, last: int) -> str:
    return (
        f"micro-batch {batch} comes with {_describe(now)}, and the sink was written up to batch"
        f" {last} by this query: its checkpoint is an older copy, or files are missing from it."
        " Nothing was written. Restore the checkpoint that the sink was last written with; or"
        " begin with a new checkpointLocation and the startingOffsets you want; or, if the rows of"
        f" this batch are written, start once with the sink's option acceptBatch={batch}"
    )


def _explain_former(batch: int, sink: str) -> str:
    return (
        f"micro-batch {batch}, or a later one, was written by this query to the topic of sink"
        f" {sink}, and comes to another one now. Nothing was written here. Start the query with its"
        " former topic until the batch is done, then change it; or, if the rows of this batch are"
        f" not needed here, start once with the sink's option acceptBatch={batch}"
    )


def _explain_upgrade(batch: int) -> str:
    return (
        f"a part of micro-batch {batch}, or all of it, was written by a version of ottla that did"
        " not decide about whole batches. Nothing was written now. Start the query once with that"
        " version, and the same options, until the batch is done; or, if all of its rows are"
        f" written, start once with the sink's option acceptBatch={batch}"
    )


def _describe(content: Content) -> str:
    return f"{content.rows} rows (digest {content.digest:016x})"


# Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id as its coordinator describes it."""

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int | None
    timeout_ms: int


class Outcome(Enum):
    """The outcome of a transaction that a decision names."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "not known"


def outcome_of(producer: ProducerIdentity, found: Transaction | None) -> Outcome:
    """The outcome of a producer's transaction; its id may have been used again since."""
    if found is None or found.producer_id != producer.producer_id:
        return Outcome.UNKNOWN
    # Since KIP-890 the end of a transaction raises the epoch; so does an abort by the broker.
    later = found.producer_epoch - producer.producer_epoch
    if found.state == "Ongoing" and later == 0:
        return Outcome.OPEN
    if found.state in {"PrepareCommit", "CompleteCommit"} and 0 <= later <= 1:
        return Outcome.COMMITTED
    if found.state in {"PrepareAbort", "CompleteAbort"} and 0 <= later <= 1:
        return Outcome.ABORTED
    return Outcome.UNKNOWN


def still_open_of(
    producers: Iterable[ProducerIdentity], found: Mapping[str, Transaction]
) -> tuple[ProducerIdentity, ...]:
    """The producers whose transactions are open."""
    return tuple(
        one for one in producers if outcome_of(one, found.get(one.transactional_id)) is Outcome.OPEN
    )


def check_open(
    producers: Iterable[ProducerIdentity], found: Mapping[str, Transaction], now_ms: int
) -> None:
    """Raise `BatchRefused` if a transaction has ended, or may end before it is committed."""
    for producer in producers:
        transaction = found.get(producer.transactional_id)
        if transaction is None or outcome_of(producer, transaction) is not Outcome.OPEN:
            raise BatchRefused(
                f"transaction {producer.transactional_id} ended before all tasks were done: it took"
                " longer than transactionTimeout allows, or another driver runs this query."
                f" {_LONGER}"
            )
        if _is_nearly_over(transaction, now_ms):
            raise BatchRefused(
                f"transaction {producer.transactional_id} has less than"
                f" {_margin_ms(transaction.timeout_ms) // 1000} s left of its"
                f" {transaction.timeout_ms // 1000} s. {_LONGER}"
            )


_LONGER: Final = (
    "Nothing of the batch counts. Give it more time (transactionTimeout, and the broker's"
    " transaction.max.timeout.ms) or less to do (maxOffsetsPerTrigger)"
)


def _is_nearly_over(transaction: Transaction, now_ms: int) -> bool:
    """True if a transaction may expire before its commit.

    One that is open far beyond its timeout means that clocks differ: then False.
    """
    if transaction.started_ms is None:
        return False
    left_ms = transaction.started_ms + transaction.timeout_ms - now_ms
    return -_GRACE_MS <= left_ms < _margin_ms(transaction.timeout_ms)


def _margin_ms(timeout_ms: int) -> int:
    return min(_MARGIN_MS, timeout_ms // 4)


@dataclass(frozen=True, slots=True)
class CommitOpen:
    """Commit these transactions, and the batch is complete."""

    producers: tuple[ProducerIdentity, ...]


@dataclass(frozen=True, slots=True)
class RevokeDecision:
    """Delete the decision: all of its transactions were aborted; the batch is written again."""

    reason: str


def resume_decision(
    decision: Decision, found: Mapping[str, Transaction], *, accepted: int | None = None
) -> CommitOpen | RevokeDecision:
    """The way to complete a decision that an earlier run has made.

    Raises `BatchRefused` when a part of the batch is lost, unless its user has `accepted` that.
    When all of it is lost there is nothing to accept: the decision is revoked.
    """
    outcomes = {one: outcome_of(one, found.get(one.transactional_id)) for one in decision.producers}
    lost = [
        one for one, outcome in outcomes.items() if outcome in {Outcome.ABORTED, Outcome.UNKNOWN}
    ]
    described = ", ".join(f"{one.transactional_id} ({outcomes[one].value})" for one in lost)
    if lost and all(outcome is Outcome.ABORTED for outcome in outcomes.values()):
        return RevokeDecision(
            f"micro-batch {decision.batch} was decided, and its driver was gone for longer than its"
            f" transactions could wait: the broker has aborted all of them ({described}). Start the"
            " query again, and the batch is written again"
        )
    if not lost or accepted == decision.batch:
        return CommitOpen(still_open_of(decision.producers, found))
    raise BatchRefused(
        f"micro-batch {decision.batch} was decided, and of its {len(outcomes)} transactions these"
        f" are not committed: {described}. The driver was gone for longer than transactionTimeout"
        " between the decision and its end. Their rows are missing, those of the others can be"
        " read. To go on without them, start once with the sink's option"
        f" acceptBatch={decision.batch}; or begin with a new checkpointLocation and other topic"
    )
