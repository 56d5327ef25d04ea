"""How many of the batches that wait to be forwarded share a request."""

import asyncio

import pytest

from fakes import build
from ottla.records.batch import SEQUENCE_MASK, read_header
from ottla.replication.forward_queue import JOINED_BYTES_MAX, JOINED_MAX, QueuedBatch, join
from ottla.replication.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Receipt


def queued(
    sequence: int = -1, *, epoch: int = 0, count: int = 1, acks: int = ACKS_ALL, value: bytes = b"v"
) -> QueuedBatch:
    """A batch of producer 7, or of none if it has no sequence."""
    batch = build.batch(
        count,
        value=value,
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=epoch if sequence >= 0 else -1,
        base_sequence=sequence,
    )
    loop = asyncio.new_event_loop()
    receipt: asyncio.Future[Receipt] = loop.create_future()
    loop.close()
    return QueuedBatch(bytearray(batch), read_header(batch), acks, build.NOW_MS, 0.0, receipt)


@pytest.mark.parametrize(
    ("queue", "count"),
    [
        ([queued()], 1),
        ([queued(), queued(), queued()], 3),
        ([queued(0, count=3), queued(3), queued(4)], 3),
        ([queued(0), queued(2)], 1),  # one between them has failed
        ([queued(0), queued(0)], 1),  # repeated
        ([queued(0), queued(1, epoch=1)], 1),
        ([queued(SEQUENCE_MASK), queued(0), queued(1)], 3),  # sequences wrap
        ([queued(acks=ACKS_ALL), queued(acks=ACKS_LEADER)], 1),
        ([queued(acks=ACKS_NONE), queued(acks=ACKS_LEADER)], 2),  # both are sent with acks=1
        ([queued()] * (JOINED_MAX + 1), JOINED_MAX),
        ([queued(value=bytes(JOINED_BYTES_MAX + 1)), queued()], 1),
        ([queued(value=bytes(JOINED_BYTES_MAX // 4))] * 5, 3),
    ],
)
def test_a_request_has_batches_that_continue_each_other_up_to_a_size(
    queue: list[QueuedBatch], count: int
) -> None:
    assert join(queue) == queue[:count]
