"""The action for a micro-batch, given stored decisions and described transactions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.transactional_producer import ProducerIdentity
from ottla.model import ProducerEpoch, ProducerId
from ottla.spark.batch_decisions import (
    SLOTS,
    BatchRefused,
    CommitOpen,
    Decision,
    NothingToCommit,
    Outcome,
    RepeatDecision,
    RevokeDecision,
    TaskResult,
    Transaction,
    WriteDecision,
    check_open,
    choose_action,
    decode_decision,
    encode_decision,
    histories_of,
    history_of,
    is_decided,
    outcome_of,
    resume_decision,
    slot_key,
)
from ottla.spark.content_digest import Content

NOW_MS = 1_000_000
TIMEOUT_MS = 60_000


def producer(task: int = 0, epoch: int = 4) -> ProducerIdentity:
    return ProducerIdentity(f"q-t-{task}.0", ProducerId(7 + task), ProducerEpoch(epoch))


def found(
    state: str = "Ongoing", *, task: int = 0, epoch: int = 4, age_ms: int = 1000
) -> Transaction:
    return Transaction(
        state=state,
        producer_id=7 + task,
        producer_epoch=epoch,
        started_ms=NOW_MS - age_ms,
        timeout_ms=TIMEOUT_MS,
    )


def written(rows: int, digest: int, task: int = 0) -> TaskResult:
    return TaskResult(Content(rows, digest), producer(task))


def repeated(rows: int, digest: int) -> TaskResult:
    return TaskResult(Content(rows, digest), found_decided=True)


DECIDED = Decision(5, Content(3, 30), (producer(0), producer(1)))


def test_a_batch_that_nobody_decided_is_decided_with_all_its_transactions() -> None:
    parts = [written(1, 10, 0), TaskResult(Content()), written(2, 2**64 - 5, 1)]
    assert choose_action(5, parts, {}) == WriteDecision(
        Decision(5, Content(3, 5), (producer(0), producer(1)))
    )
    earlier = {4: Decision(4, Content(1, 1))}
    assert isinstance(choose_action(5, parts, earlier), WriteDecision)


def test_a_repetition_with_the_same_content_writes_nothing_whatever_its_layout() -> None:
    assert is_decided(5, {5: DECIDED})
    for parts in ([repeated(3, 30)], [repeated(1, 10), repeated(2, 20)]):
        assert choose_action(5, parts, {5: DECIDED}) == RepeatDecision(DECIDED)


@pytest.mark.parametrize("content", [Content(3, 31), Content(2, 30), Content()])
def test_another_content_is_refused_with_both_ways_on(content: Content) -> None:
    parts = [TaskResult(content, found_decided=True)]
    with pytest.raises(BatchRefused, match=r"(?s)with other content.*checkpointLoc.*acceptBatch=5"):
        choose_action(5, parts, {5: DECIDED})
    assert choose_action(5, parts, {5: DECIDED}, accepted=5) == RepeatDecision(DECIDED)
    with pytest.raises(BatchRefused):
        choose_action(5, parts, {5: DECIDED}, accepted=4)


def test_a_batch_from_before_what_is_remembered_is_an_older_checkpoint() -> None:
    history = {70: Decision(70, Content(1, 1))}
    assert is_decided(5, history)
    with pytest.raises(BatchRefused, match=r"up to batch\s70.*older copy.*Restore"):
        choose_action(5, [repeated(1, 1)], history)
    assert choose_action(5, [TaskResult(Content())], history) == NothingToCommit()
    assert choose_action(5, [repeated(1, 1)], history, accepted=5) == NothingToCommit()


def test_a_decision_that_appears_while_tasks_write_is_another_drivers() -> None:
    for batch in (5, 6):
        history = {batch: Decision(batch, Content(3, 30))}
        with pytest.raises(BatchRefused, match="two queries run on one checkpoint"):
            choose_action(5, [written(3, 30)], history)


def test_a_decision_that_disappears_is_not_made_up_from_tasks_that_wrote_nothing() -> None:
    for parts in ([repeated(3, 30)], [repeated(1, 10), written(2, 20)]):
        with pytest.raises(BatchRefused, match=r"is not any more.*Start the query again"):
            choose_action(5, parts, {})


def test_a_batch_that_an_old_version_wrote_in_part_is_refused() -> None:
    with pytest.raises(BatchRefused, match=r"written by a version.*acceptBatch=5"):
        choose_action(5, [written(3, 30)], {}, last_of_old_version=5)
    assert (
        choose_action(5, [written(3, 30)], {}, last_of_old_version=5, accepted=5)
        == NothingToCommit()
    )
    assert isinstance(choose_action(5, [written(3, 30)], {}, last_of_old_version=4), WriteDecision)


def test_a_batch_that_was_written_to_a_former_topic_is_refused() -> None:
    former_sinks = {"q-u": {5: DECIDED}}
    for batch in (4, 5):
        with pytest.raises(BatchRefused, match=rf"q-u, and comes to.*acceptBatch={batch}"):
            choose_action(batch, [written(3, 30)], {}, former_sinks=former_sinks)
        assert (
            choose_action(batch, [written(3, 30)], {}, former_sinks=former_sinks, accepted=batch)
            == NothingToCommit()
        )
    assert isinstance(
        choose_action(6, [written(3, 30)], {}, former_sinks=former_sinks), WriteDecision
    )
    history = {3: Decision(3, Content(1, 1))}  # and back to the first topic
    with pytest.raises(BatchRefused, match="q-u"):
        choose_action(5, [written(3, 30)], history, former_sinks=former_sinks)


def test_a_batch_without_rows_needs_no_decision() -> None:
    assert choose_action(5, [TaskResult(Content())], {}) == NothingToCommit()
    assert (
        choose_action(5, [TaskResult(Content())], {}, former_sinks={"q-u": {5: DECIDED}})
        == NothingToCommit()
    )
    assert (
        choose_action(5, [TaskResult(Content())], {4: Decision(4, Content(1, 1))})
        == NothingToCommit()
    )


# Transactions


@pytest.mark.parametrize(
    ("transaction", "outcome"),
    [
        (None, Outcome.UNKNOWN),
        (found(), Outcome.OPEN),
        (found(epoch=5), Outcome.UNKNOWN),
        (found("CompleteCommit"), Outcome.COMMITTED),  # transaction.version 1 keeps the epoch
        (found("CompleteCommit", epoch=5), Outcome.COMMITTED),
        (found("PrepareCommit", epoch=5), Outcome.COMMITTED),
        (found("CompleteCommit", epoch=7), Outcome.UNKNOWN),  # that of a later transaction
        (found("CompleteAbort", epoch=5), Outcome.ABORTED),
        (found("PrepareAbort", epoch=5), Outcome.ABORTED),
        (found("Empty", epoch=5), Outcome.UNKNOWN),
        (found("CompleteCommit", task=1), Outcome.UNKNOWN),  # another producer id
    ],
)
def test_what_became_of_a_transaction(transaction: Transaction | None, outcome: Outcome) -> None:
    assert outcome_of(producer(), transaction) is outcome


def test_only_what_is_open_and_has_time_left_is_decided() -> None:
    check_open([producer()], {"q-t-0.0": found()}, NOW_MS)
    for gone in ({}, {"q-t-0.0": found("CompleteAbort", epoch=5)}, {"q-t-0.0": found(epoch=5)}):
        with pytest.raises(BatchRefused, match="ended before all tasks were done"):
            check_open([producer()], gone, NOW_MS)
    late = {"q-t-0.0": found(age_ms=TIMEOUT_MS - 9000)}
    with pytest.raises(BatchRefused, match=r"less than\s10 s left.*maxOffsetsPerTrigger"):
        check_open([producer()], late, NOW_MS)
    # Open for an hour with a timeout of a minute: the clocks of driver and broker differ.
    check_open([producer()], {"q-t-0.0": found(age_ms=3_600_000)}, NOW_MS)


def states(first: str, second: str) -> dict[str, Transaction]:
    epochs = {"Ongoing": 4, "Empty": 6}
    return {
        f"q-t-{task}.0": found(state, task=task, epoch=epochs.get(state, 5))
        for task, state in enumerate((first, second))
    }


def test_a_decision_is_carried_out_as_far_as_it_has_not_been() -> None:
    both = (producer(0), producer(1))
    assert resume_decision(DECIDED, states("Ongoing", "Ongoing")) == CommitOpen(both)
    assert resume_decision(DECIDED, states("CompleteCommit", "Ongoing")) == CommitOpen(both[1:])
    assert resume_decision(DECIDED, states("PrepareCommit", "CompleteCommit")) == CommitOpen(())


def test_a_batch_of_which_nothing_was_committed_in_time_is_done_anew() -> None:
    for accepted in (None, 5):
        told = resume_decision(DECIDED, states("CompleteAbort", "PrepareAbort"), accepted=accepted)
        assert isinstance(told, RevokeDecision)
        assert "Start the query again" in told.reason


@pytest.mark.parametrize(
    "torn", [("CompleteCommit", "CompleteAbort"), ("Ongoing", "Empty"), ("Empty", "Empty")]
)
def test_a_batch_that_lost_a_part_is_an_error_until_it_is_accepted(torn: tuple[str, str]) -> None:
    with pytest.raises(BatchRefused, match=r"not committed: q-t-.*acceptBatch=5"):
        resume_decision(DECIDED, states(*torn))
    accepted = resume_decision(DECIDED, states(*torn), accepted=5)
    assert isinstance(accepted, CommitOpen)
    assert len(accepted.producers) == torn.count("Ongoing")


# What is remembered

names = st.text(st.characters(codec="utf-8"), max_size=20)
producers = st.builds(ProducerIdentity, names, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
decisions = st.builds(
    Decision,
    st.integers(0, 2**40),
    st.builds(Content, st.integers(0, 2**40), st.integers(0, 2**64 - 1)),
    st.lists(producers, max_size=3).map(tuple),
)


@given(decisions)
def test_decisions_are_read_as_they_were_written(decision: Decision) -> None:
    assert decode_decision(encode_decision(decision)) == decision


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"format":1,"batch":"x"}', b"\xff"])
def test_what_is_no_decision_is_refused(value: bytes) -> None:
    with pytest.raises(BatchRefused, match="cannot be read"):
        decode_decision(value)


def test_a_decision_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(BatchRefused, match="format 2"):
        decode_decision(b'{"format":2}')


@given(st.lists(st.integers(0, 200), min_size=1))
def test_the_last_batches_are_remembered_whatever_the_order(batches: list[int]) -> None:
    """A driver that comes late overwrites nothing but its own batch, or one long before."""
    values = dict[bytes, bytes]()
    for batch in batches:
        values[slot_key("q-t", batch)] = encode_decision(Decision(batch, Content(batch, 0)))
        values[slot_key("other", batch)] = encode_decision(Decision(999, Content()))
        values[slot_key("q-u", batch)] = encode_decision(Decision(batch, Content()))
    history = history_of("q-t", values)
    histories = histories_of("q", values)
    assert histories.keys() == {"q-t", "q-u"}
    assert histories["q-t"] == history
    for batch in batches:
        later = [one for one in batches if one % SLOTS == batch % SLOTS and one != batch]
        assert batch in history or later
    assert all(history[batch].content.rows == batch for batch in history)
