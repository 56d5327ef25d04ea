"""What becomes of a micro-batch: decided here, from values only.

A batch is decided once. Its tasks leave their transactions open; the driver writes one decision,
which names the transactions and the content, and then commits them. Whoever comes to the batch
again finds the decision or finds none:

- none: nothing of the batch counts yet. What is open is aborted, and the batch is written anew,
  in whatever tasks it has now.
- a decision: the batch is written. What the decision names is committed if it is still open, and
  the content that came this time is compared with the one that was decided.

A sink keeps its last `SLOTS` decisions, each under a key of its own (the number of the batch
modulo `SLOTS`), so that a driver that comes late can spoil its own batch only, never a later one.
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
_SINK: Final = "sink"  # what keys begin with
_MARGIN_MS: Final = 10_000  # what has to be left of a transaction's time when it is decided
_GRACE_MS: Final = 15_000  # brokers look for transactions that are over their time every 10 s


class BatchRefused(Exception):
    """A batch that must not be written, or not be skipped, without a word from its user."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task says of its rows; without a producer it has written nothing."""

    content: Content
    producer: ProducerIdentity | None = None
    found_decided: bool = False  # so it has written nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """This batch consists of what these producers have written; none are left once all ended."""

    batch: int
    content: Content
    producers: tuple[ProducerIdentity, ...] = ()

    def finished(self) -> "Decision":
        """The same, once every transaction has been committed."""
        return replace(self, producers=())


History = Mapping[int, Decision]  # by the number of the batch
_NO_FORMER_SINKS: Final[Mapping[str, History]] = {}


# What is remembered


def slot_key(sink: str, batch: int) -> bytes:
    """Where the decision about a batch is kept."""
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
    """The inverse of `encode_decision`; what is something else is `BatchRefused`."""
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
    """The decisions of a sink among everything that is remembered."""
    kept = (values.get(slot_key(sink, slot)) for slot in range(SLOTS))
    decisions = [decode_decision(value) for value in kept if value is not None]
    return {one.batch: one for one in decisions}


def histories_of(owner: str, values: Mapping[bytes, bytes]) -> dict[str, dict[int, Decision]]:
    """The decisions of every sink that a query has, or had before its topic was changed."""
    own = f"{_SINK} {owner}-".encode()
    histories = dict[str, dict[int, Decision]]()
    for key in (key for key in values if key.startswith(own)):
        sink = key.decode().partition(" ")[2].rpartition(" ")[0]
        decision = decode_decision(values[key])
        histories.setdefault(sink, {})[decision.batch] = decision
    return histories


def is_decided(batch: int, history: History) -> bool:
    """Whether tasks of this batch have nothing to write: it, or a later one, was decided."""
    return bool(history) and batch <= max(history)


# What the driver does


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """There are no rows."""


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write this decision, then commit what it names."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class RepeatDecision:
    """Written before: commit what is still open of it."""

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
    """What to do with what the tasks of a batch have left; `BatchRefused` says why nothing.

    `elsewhere` are decisions of sinks that the query had before, when it wrote to another topic.
    `accepted` is a batch that its user says is written, whatever it looks like now.
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
            " written. Start the query again, and the batch is written anew"
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


# What transactions are found to be


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id as its coordinator describes it."""

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int | None
    timeout_ms: int


class Outcome(Enum):
    """What has become of a transaction that a decision names."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "not known"


def outcome_of(producer: ProducerIdentity, found: Transaction | None) -> Outcome:
    """What has become of a producer's transaction; its id may have had other uses since."""
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
    """Those of the producers whose transactions are open."""
    return tuple(
        one for one in producers if outcome_of(one, found.get(one.transactional_id)) is Outcome.OPEN
    )


def check_open(
    producers: Iterable[ProducerIdentity], found: Mapping[str, Transaction], now_ms: int
) -> None:
    """Refuse to decide about transactions that have ended, or may before they are committed."""
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
    """Far beyond its time and open says that two clocks differ: then nothing is known."""
    if transaction.started_ms is None:
        return False
    left_ms = transaction.started_ms + transaction.timeout_ms - now_ms
    return -_GRACE_MS <= left_ms < _margin_ms(transaction.timeout_ms)


def _margin_ms(timeout_ms: int) -> int:
    return min(_MARGIN_MS, timeout_ms // 4)


@dataclass(frozen=True, slots=True)
class CommitOpen:
    """Commit these, and the batch is whole."""

    producers: tuple[ProducerIdentity, ...]


@dataclass(frozen=True, slots=True)
class RevokeDecision:
    """Nothing of the batch counts, nor ever will: forget the decision and do the batch anew."""

    reason: str


def resume_decision(
    decision: Decision, found: Mapping[str, Transaction], *, accepted: int | None = None
) -> CommitOpen | RevokeDecision:
    """How to carry out a decision that somebody else has made.

    `BatchRefused` when a part of the batch is lost, unless its user has `accepted` that. When all
    of it is lost nothing is there that could be accepted.
    """
    outcomes = {one: outcome_of(one, found.get(one.transactional_id)) for one in decision.producers}
    lost = [
        one for one, outcome in outcomes.items() if outcome in {Outcome.ABORTED, Outcome.UNKNOWN}
    ]
    told = ", ".join(f"{one.transactional_id} ({outcomes[one].value})" for one in lost)
    if lost and all(outcome is Outcome.ABORTED for outcome in outcomes.values()):
        return RevokeDecision(
            f"micro-batch {decision.batch} was decided, and its driver was gone for longer than its"
            f" transactions could wait: the broker has aborted all of them ({told}). Start the"
            " query again, and the batch is written anew"
        )
    if not lost or accepted == decision.batch:
        return CommitOpen(still_open_of(decision.producers, found))
    raise BatchRefused(
        f"micro-batch {decision.batch} was decided, and of its {len(outcomes)} transactions these"
        f" are not committed: {told}. The driver was gone for longer than transactionTimeout"
        " between the decision and its end. Their rows are missing, those of the others can be"
        " read. To go on without them, start once with the sink's option"
        f" acceptBatch={decision.batch}; or begin with a new checkpointLocation and other topic"
    )
