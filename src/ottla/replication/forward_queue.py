"""Batches that wait to be forwarded, and how many of them share a request."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.model import TimestampMs
from ottla.records.batch import SEQUENCE_MASK, BatchHeader
from ottla.replication.partition import ACKS_LEADER, ACKS_NONE, Receipt

JOINED_MAX: Final = 100  # batches of a request: its receiver appends them in one turn of its loop
JOINED_BYTES_MAX: Final = 1 << 20  # a broker that takes a large batch takes as many small ones


@dataclass(slots=True)
class QueuedBatch:
    """A copy of a producer's batch for a sealed partition."""

    batch: bytearray
    header: BatchHeader  # as the producer sent it
    acks: int
    now_ms: TimestampMs
    deadline_s: float  # its request has timed out by then
    receipt: "asyncio.Future[Receipt]"
    is_looked_up: bool = False  # in every log that may have it

    @property
    def is_final(self) -> bool:
        """True if an error about its sequence is its producer's."""
        return self.is_looked_up or self.header.producer_id < 0

    @property
    def sent_acks(self) -> int:
        """Acks of the request that forwards it: this broker always waits for a response."""
        return ACKS_LEADER if self.acks == ACKS_NONE else self.acks


def join(queue: Sequence[QueuedBatch]) -> list[QueuedBatch]:
    """The first batches of a queue, as many as one request may have; at least one.

    Each continues the sequence of the one before: if one is refused, so are those behind it.
    """
    joined = [queue[0]]
    size_bytes = len(queue[0].batch)
    for batch in queue[1:JOINED_MAX]:
        size_bytes += len(batch.batch)
        if size_bytes > JOINED_BYTES_MAX or not _continues(batch, joined[-1]):
            break
        joined.append(batch)
    return joined


def _continues(batch: QueuedBatch, previous: QueuedBatch) -> bool:
    if batch.sent_acks != previous.sent_acks:
        return False
    header, last = batch.header, previous.header
    if header.producer_id < 0:
        return True
    next_sequence = (last.last_sequence + 1) & SEQUENCE_MASK
    return (header.producer_epoch, header.base_sequence) == (last.producer_epoch, next_sequence)
