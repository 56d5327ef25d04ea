"""The state of a share partition as values: what its leader writes and what is kept of it."""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import NO_UUID, Offset, ProducerId, Uuid, format_uuid, parse_uuid

NO_START: Final = Offset(-1)  # not decided yet: the leader resolves `share.auto.offset.reset`
_KEYS_MAX: Final = 4096  # share partitions whose keys are remembered as text


class SharePartitionKey(NamedTuple):
    """A partition as one share group reads it."""

    group_id: str
    topic_id: Uuid
    partition: int

    def __str__(self) -> str:
        """The key as FindCoordinator has it; its hash decides which shard keeps the state."""
        return _text_of(self)

    @classmethod
    def parse(cls, text: str) -> "SharePartitionKey":
        """The inverse of `str`; a group's name may have colons."""
        group_id, _, rest = text.rpartition(":")[0].rpartition(":")
        number = text.rpartition(":")[2]
        try:
            key = cls(group_id, parse_uuid(rest), int(number))
        except ValueError:
            key = cls("", NO_UUID, -1)
        if not key.group_id or str(key) != text:
            raise InvalidRequest(f"{text[:300]!r} is not GROUP:TOPIC-ID:PARTITION")
        return key


@lru_cache(maxsize=_KEYS_MAX)
def _text_of(key: SharePartitionKey) -> str:
    return f"{key.group_id}:{format_uuid(key.topic_id)}:{key.partition}"


class DeliveryState(IntEnum):
    """States of a record; the numbers are Kafka's."""

    AVAILABLE = 0
    ACQUIRED = 1  # by a member, for a while; persisted if the group's leases are durable
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # not delivered again; its dead letter is not written yet
    ARCHIVED = 4  # rejected, delivered too often, or not a record at all

    def __init__(self, number: int) -> None:
        self.is_final = number in {2, 4}  # nothing remains to be done for the record


class Cause(IntEnum):
    """Why a record goes to the dead-letter topic of its group."""

    NONE = 0
    DELIVERY_LIMIT = 1
    REJECTED = 2
    EXPIRED = 3


class StateBatch(NamedTuple):
    """The state of adjacent offsets; `last` is inside, as on the wire and in the log."""

    first: Offset
    last: Offset
    state: DeliveryState
    deliveries: int
    not_before_ms: int = 0  # of available records: until then they wait
    cause: Cause = Cause.NONE  # of those that are archiving
    is_sending: bool = False  # of those that are archiving: in the batch that is being written
    member: str = ""  # of acquired records: who holds them
    reason: str = ""  # of those that are archiving: what a consumer said


class Sender(NamedTuple):
    """The producer of a share partition's dead letters, and where it writes to.

    A producer id is used for one destination only: sequences are counted there.
    """

    producer_id: ProducerId
    sequence: int  # of the batch that is being written, or of the next one
    topic_id: Uuid
    partition: int
    begun_ms: int = 0  # when the last batch was begun, by the machine's clock


class StateWrite(NamedTuple):
    """A change of a share partition's state."""

    start_offset: Offset
    complete_count: int  # records from the start offset on that are finished
    batches: tuple[StateBatch, ...]
    sender: Sender | None = None  # None if it is as it was


class StateRead(NamedTuple):
    """The state of a share partition as its next leader reads it."""

    state_epoch: int
    start_offset: Offset
    batches: tuple[StateBatch, ...]
    sender: Sender | None = None  # None until there was a dead letter


class StateSummary(NamedTuple):
    """The state of a share partition without its records."""

    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    complete_count: int


def combine(
    known: Iterable[StateBatch], changed: Iterable[StateBatch], start: Offset
) -> tuple[StateBatch, ...]:
    """The batches after a change: sorted, without overlaps, none below `start`.

    A later batch counts where two overlap; adjacent equal ones become one.
    """
    merged = sorted(known)
    for batch in changed:
        merged = _overlay(merged, batch)
    found: list[StateBatch] = []
    for batch in merged:
        if batch.last < start:
            continue
        cut = batch._replace(first=Offset(max(batch.first, start)))
        last = found[-1] if found else None
        if last is not None and last.last + 1 == cut.first and last[2:] == cut[2:]:
            found[-1] = last._replace(last=cut.last)
        else:
            found.append(cut)
    return tuple(found)


def _overlay(known: list[StateBatch], batch: StateBatch) -> list[StateBatch]:
    """`known`, which is sorted, with `batch` in place of what it covers."""
    before = [b for b in known if b.first < batch.first]
    after = [b for b in known if b.last > batch.last]
    if before and before[-1].last >= batch.first:
        before[-1] = before[-1]._replace(last=Offset(batch.first - 1))
    if after and after[0].first <= batch.last:
        after[0] = after[0]._replace(first=Offset(batch.last + 1))
    return [*before, batch, *after]
