"""Batches visible to a reader: no control batches, and in read_committed no aborted ones."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop

from ottla.model import Offset, ProducerId
from ottla.records.batch import BatchHeader, Buffer, MarkerKind, batches, read_marker

AbortedTransaction = tuple[Offset, ProducerId]  # its first offset and its producer


def readable(
    fetched: Buffer, aborted: Sequence[AbortedTransaction]
) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """Every whole batch with its header; None in place of a batch that is not visible.

    `aborted` are the aborted transactions of the fetched range: a producer's batches are dropped
    from the start of its transaction to its abort marker. Empty in read_uncommitted.
    """
    upcoming = list(aborted)
    heapify(upcoming)
    void: set[int] = set()
    for header, batch in batches(fetched):
        void.update(_begun(upcoming, header))
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and marker.kind is MarkerKind.ABORT:
                void.discard(header.producer_id)
            yield header, None
        elif header.is_transactional and header.producer_id in void:
            yield header, None
        else:
            yield header, batch


def _begun(upcoming: list[AbortedTransaction], header: BatchHeader) -> Iterable[ProducerId]:
    while upcoming and upcoming[0][0] <= header.last_offset:
        yield heappop(upcoming)[1]
