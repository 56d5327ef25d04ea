"""The sequence of one producer whose batches are in several logs."""

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple, Protocol

from ottla.errors import InvalidProducerEpoch, OutOfOrderSequence
from ottla.model import ProducerEpoch
from ottla.records.batch import SEQUENCE_MASK, BatchHeader
from ottla.storage.producers import ProducedBatch

_HALF: Final = (SEQUENCE_MASK + 1) // 2


class SequenceState(Protocol):
    """The state of a producer in one log."""

    @property
    def epoch(self) -> ProducerEpoch: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def batches(self) -> Sequence[ProducedBatch]: ...


class Repeated(NamedTuple):
    """The first copy of a batch, and which of the logs has it."""

    at: int
    batch: ProducedBatch


def find_repeated(header: BatchHeader, states: Sequence[SequenceState | None]) -> Repeated | None:
    """The first copy of a batch in any log; None for a new batch that may be appended.

    One that is neither is refused, as a single log would refuse it.
    """
    for at, state in enumerate(states):
        if state is not None and state.epoch == header.producer_epoch:
            for batch in state.batches:
                if _numbers(batch) == (header.base_sequence, header.last_sequence):
                    return Repeated(at, batch)
    known = [state for state in states if state is not None]
    newest = max((state.epoch for state in known), default=ProducerEpoch(-1))
    if header.producer_epoch < newest:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} has been replaced: epoch {header.producer_epoch}"
            f" is older than {newest}"
        )
    # A marker alone leaves an epoch without batches, which tells nothing of the sequence.
    current = [state for state in known if state.epoch == header.producer_epoch and state.batches]
    expected = header.base_sequence
    if current:
        expected = reduce(_later, current).next_sequence
    elif any(state.epoch < header.producer_epoch for state in known):
        expected = 0
    if header.base_sequence != expected:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sends sequence {header.base_sequence} in epoch"
            f" {header.producer_epoch}, expected is {expected}"
        )
    return None


def _numbers(batch: ProducedBatch) -> tuple[int, int]:
    return batch.first_sequence, batch.last_sequence


def _later(one: SequenceState, other: SequenceState) -> SequenceState:
    """The state that has more of the producer's batches; sequences wrap."""
    ahead = (other.next_sequence - one.next_sequence) & SEQUENCE_MASK
    return other if ahead < _HALF else one
