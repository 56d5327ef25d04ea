"""Records that a member of a share group has acquired, and their acknowledgements on the wire."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Final, Protocol

from ottla.client.errors import ClientError, Unreadable
from ottla.errors import ApiError
from ottla.model import Endpoint, Offset, TopicPartition, Uuid
from ottla.protocol.messages.share_groups import AcknowledgementBatch, AcquiredRecords
from ottla.records.batch import Buffer, Record, batches, check_stored, records

GROUP_BACKOFF: Final = -1  # a released record waits as long as its group's settings say
_DECOMPRESSED_BYTES_MAX: Final = 256 << 20  # of one batch; refuses decompression bombs


class AcknowledgeKind(IntEnum):
    """Kinds of acknowledgements; the numbers are Kafka's."""

    GAP = 0  # there is no record at the offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Session(Protocol):
    """The session of a member that acquired a record, and acknowledges it."""

    @property
    def is_open(self) -> bool: ...

    @property
    def endpoint(self) -> Endpoint: ...

    async def acknowledge(self, said: "Sequence[Acknowledgement]") -> None: ...


@dataclass(slots=True, eq=False)
class ShareRecord:
    """A record that is acquired until `lock_end_s` (by the event loop's clock).

    `session` is the one that acquired it, and the only one that can acknowledge it unless leases
    are durable. `failure` is the reason why its last acknowledgement has no effect, or perhaps
    none.
    """

    tp: TopicPartition
    topic_id: Uuid
    record: Record
    delivery_count: int
    lock_end_s: float
    session: "Session"
    failure: ClientError | None = None

    @property
    def offset(self) -> Offset:
        return self.record.offset


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgement:
    """A member's acknowledgement of one acquired record."""

    record: ShareRecord
    kind: AcknowledgeKind
    delay_ms: int = GROUP_BACKOFF  # before a released record is delivered again
    is_counted: bool = True  # a released record was delivered
    reason: str = ""  # why it is rejected


def decode_acquired(
    tp: TopicPartition, fetched: Buffer, acquired: Sequence[AcquiredRecords]
) -> Iterator[tuple[Record, int]]:
    """The acquired records and their delivery counts.

    An offset without a record, where compaction was, has a record without key and value instead,
    and 0 as its count: it is to be acknowledged as a gap.
    """
    counts = {
        offset: item.delivery_count
        for item in acquired
        for offset in range(item.first_offset, item.last_offset + 1)
    }
    try:
        for header, batch in batches(fetched):
            if header.is_control or header.last_offset < acquired[0].first_offset:
                continue
            check_stored(batch)
            for record in records(batch, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX):
                count = counts.pop(record.offset, None)
                if count is not None:
                    yield record, count
    except ApiError as problem:
        raise Unreadable(f"{tp} at offset {min(counts, default=-1)}: {problem}") from None
    for offset in counts:
        yield Record(offset=Offset(offset)), 0


def batches_of(said: Iterable[Acknowledgement]) -> list[AcknowledgementBatch]:
    """Acknowledgements of one partition on the wire: adjacent offsets together, in their order."""
    found = list[AcknowledgementBatch]()
    for item in sorted(said, key=attrgetter("record.offset")):
        offset, last = item.record.offset, found[-1] if found else None
        if (
            last is not None
            and last.last_offset + 1 == offset
            and last.acknowledge_types == [item.kind]
            and last.retry_delay_ms == item.delay_ms
            and last.is_uncounted is not item.is_counted
            and last.reason == item.reason
        ):
            last.last_offset = offset
        else:
            found.append(
                AcknowledgementBatch(
                    first_offset=offset,
                    last_offset=offset,
                    acknowledge_types=[int(item.kind)],
                    retry_delay_ms=item.delay_ms,
                    is_uncounted=not item.is_counted,
                    reason=item.reason,
                )
            )
    return found
