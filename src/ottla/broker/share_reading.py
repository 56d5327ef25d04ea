"""Reading a log for a share partition: stretches of offsets, whole batches, durations."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from ottla.errors import ApiError
from ottla.model import Offset, TimestampMs
from ottla.queues.expiry import TTL_BYTES, Expiries
from ottla.queues.key_order import key_digest
from ottla.queues.lens import Lens, hides_any, shown_stretches
from ottla.queues.share_partition import Stretch
from ottla.records import batch as batches
from ottla.records.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    HIDES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Record,
)
from ottla.records.dead_letter_headers import FOR_GROUP
from ottla.records.record_slices import payload_of, slice_records
from ottla.replication.partition import LeaderPartition
from ottla.storage.log import Log

_CHUNK_BYTES: Final = 256 * 1024
_FOR_GROUP_BYTES: Final = FOR_GROUP.encode()
_COMMAND_BYTES: Final = b"ottla."  # in the names of all headers that are looked at
_KIND: Final = Struct(">qi4xb4xhi30xi")  # offset, length, magic, attributes, last delta, records
_NOT_PLAIN: Final = CODEC_MASK | TRANSACTIONAL | CONTROL | HIDES  # attributes to look at closer


class Reading(NamedTuple):
    """How a share group reads a log."""

    group_id: str
    read_committed: bool
    stable_end: Offset  # all transactions below are decided
    now_ms: TimestampMs  # by the machine's clock, as timestamps of records are
    expiries: Expiries


class ReadBatches:
    """Whole batches that were read from a log up to `end`, with where each of them stands.

    They are committed: they stay as they are. They are plain if all they have is records for every
    group, without holes between them. Then their stretches are made once, for all fetches.
    """

    __slots__ = ("_positions", "_starts", "_stretches", "data", "end", "is_plain")

    def __init__(self, data: bytes, end: Offset) -> None:
        self.data = data
        self.end = end
        self._starts: list[int] = []
        self._positions: list[int] = []  # in the data, of each batch and behind the last
        self._stretches: list[Stretch] = []
        self.is_plain = self._walk() and _COMMAND_BYTES not in data

    def _walk(self) -> bool:
        """Find the batches; True if each has plain records and is followed by the next."""
        data, unpack = self.data, _KIND.unpack_from
        starts, positions, stretches = self._starts, self._positions, self._stretches
        position, end, behind, is_plain = 0, len(data), -1, True
        while position + HEADER_BYTES <= end:
            base, length, magic, attributes, last_delta, count = unpack(data, position)
            size = length + LENGTH_END
            if size < HEADER_BYTES or position + size > end:
                break  # a damaged one is refused where it is read
            if attributes & _NOT_PLAIN or magic != MAGIC or count <= 0 or behind not in {-1, base}:
                is_plain = False
            behind = base + last_delta + 1
            starts.append(base)
            positions.append(position)
            stretches.append(tuple.__new__(Stretch, (base, behind, True, False)))
            position += size
        positions.append(position)
        return is_plain and behind == self.end

    def has(self, offset: int) -> bool:
        """True if the batches go on from an offset."""
        return self._starts[0] <= offset < self.end

    def stretches(self, at: Offset) -> list[Stretch]:
        """The offsets of plain batches from `at` on."""
        assert self.is_plain, "others are read for each group"
        first = bisect_right(self._starts, at) - 1
        found = self._stretches[first:] if first else self._stretches
        if found[0].start < at:
            return [found[0]._replace(start=at), *found[1:]]
        return found

    def rest(self, at: Offset) -> bytes:
        """The batches from the one that holds `at` on."""
        return self.data[self._positions[max(bisect_right(self._starts, at) - 1, 0)] :]

    def covering(self, first: Offset, last: Offset) -> bytes:
        """The batches from the one that holds `first` to the one that holds `last`."""
        starts, positions = self._starts, self._positions
        begin = bisect_right(starts, first) - 1
        behind = bisect_right(starts, last, begin)
        return self.data[positions[begin] : positions[behind]]


def stretches_of(
    data: bytes, at: int, end: int, partition_log: Log, reading: Reading
) -> Iterator[Stretch]:
    """The offsets from `at` on: batches with records to deliver, and all that lies between.

    Records that are for one group are redriven ones. They are delivered once their transaction is
    committed, also to a group that reads uncommitted records: else they might come twice.
    """
    has_commands = _COMMAND_BYTES in data
    has_addressed = has_commands and _FOR_GROUP_BYTES in data
    has_ttl = has_commands and TTL_BYTES in data
    bytes_max = batches.decompressed_bytes_max(partition_log.config.max_message_bytes)
    needs_aborted = reading.read_committed or has_addressed
    aborted = partition_log.aborted_transactions(Offset(at), Offset(end)) if needs_aborted else []
    position = at
    for header, view in batches.batches(data):
        if header.next_offset <= position:
            continue
        if header.base_offset > position:
            yield Stretch(Offset(position), Offset(header.base_offset), False)
            position = header.base_offset
        is_addressed = has_addressed and _FOR_GROUP_BYTES in bytes(view)
        counts_aborted = header.is_transactional and (reading.read_committed or is_addressed)
        if counts_aborted and header.base_offset >= reading.stable_end:
            return
        is_aborted = counts_aborted and any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
        has_records = not header.is_control and header.record_count > 0 and not is_aborted
        hidden = _hidden(header, view, bytes_max) if has_records else ()
        if hidden and len(hidden) == header.next_offset - header.base_offset:
            has_records = False
        next_offset = header.next_offset
        whole = Stretch(Offset(position), next_offset, has_records)
        expired = _expired(header, view, bytes_max, reading, has_ttl) if has_records else ()
        others = _others(view, reading.group_id) if is_addressed and has_records else ()
        if hidden or others or expired:
            yield from _parts(whole, {*others, *hidden}, expired)
        else:
            yield whole
        position = next_offset
    if end > position:
        yield Stretch(Offset(position), Offset(end), False)


def expired_in(data: bytes, log: Log, reading: Reading) -> Iterator[Stretch]:
    """The records that have expired, one by one."""
    has_ttl = TTL_BYTES in data
    bytes_max = batches.decompressed_bytes_max(log.config.max_message_bytes)
    for header, view in batches.batches(data):
        if not header.is_control:
            hidden = _hidden(header, view, bytes_max)
            for at in _expired(header, view, bytes_max, reading, has_ttl):
                if at not in hidden:
                    yield Stretch(Offset(at), Offset(at + 1), False, is_expired=True)


def seen_of(data: bytes, partition_log: Log) -> bytes:
    """The batches as a reader sees them."""
    if not partition_log.may_hide or not hides_any(data):
        return data
    lens = Lens(batches.decompressed_bytes_max(partition_log.config.max_message_bytes))
    lens.take(data, is_whole=True)
    return lens.finish().data


def _hidden(header: BatchHeader, view: memoryview, bytes_max: int) -> Collection[int]:
    """Offsets of records that no reader sees, for they wait."""
    if not header.attributes & HIDES:
        return ()
    hidden = set(range(header.base_offset, header.next_offset))
    for start, end in shown_stretches(view, header, bytes_max):
        hidden.difference_update(range(start, end))
    return hidden


def _expired(
    header: BatchHeader, view: memoryview, bytes_max: int, reading: Reading, has_ttl: bool
) -> Collection[int]:
    """Offsets of records that are not delivered any more."""
    times = reading.expiries.of(header, view, bytes_max, has_ttl=has_ttl)
    return {at for at, end_ms in times.items() if end_ms <= reading.now_ms} if times else ()


def _others(view: memoryview, group_id: str) -> Collection[int]:
    """Offsets of records that are for another group.

    Batches that are compressed are not looked into: redriven records are not compressed.
    """
    name = group_id.encode()
    return {
        record.offset
        for record in batches.records(view)
        if (addressee := dict(record.headers).get(FOR_GROUP)) is not None and addressee != name
    }


def _parts(
    whole: Stretch, left_out: Collection[int], expired: Collection[int]
) -> Iterator[Stretch]:
    """The stretches of a batch in which some records are not delivered."""
    position = whole.start
    for at in sorted({*left_out, *expired}):
        if at < position:
            continue
        if at > position:
            yield Stretch(position, Offset(at), True)
        position = Offset(at + 1)
        yield Stretch(Offset(at), position, False, is_expired=at not in left_out)
    if position < whole.end:
        yield Stretch(position, whole.end, True)


def digests_of(data: bytes, bytes_max: int) -> dict[int, bytes | None]:
    """Digests of the keys of records, by offset; records that cannot be read have none."""
    found: dict[int, bytes | None] = {}
    for header, view in batches.batches(data):
        if header.is_control:
            continue
        try:
            payload = payload_of(view, header, bytes_max)
            slices = slice_records(payload, header.record_count)
        except ApiError:
            continue
        for _, _, _, delta, key, _ in slices:
            if key is not None:
                found[header.base_offset + delta] = key_digest(key)
    return found


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds."""
    days, _, times = text.removeprefix("P").partition("T")
    total = 0.0
    for part, units in ((days, {"D": 86_400.0}), (times, {"H": 3600.0, "M": 60.0, "S": 1.0})):
        number = ""
        for character in part:
            if character in units:
                total += float(number) * units[character]
                number = ""
            else:
                number += character
    return int(total * 1000)


def read_records(
    partition: LeaderPartition, offsets: Sequence[Offset]
) -> dict[Offset, Record | None]:
    """The records at these offsets, which ascend; None for an offset that has no record.

    Offsets that are not in the log any more, or cannot be read, are left out.
    """
    found: dict[Offset, Record | None] = {}
    wanted = frozenset(offsets)
    unreadable: set[Offset] = set()
    log = partition.log
    bytes_max = batches.decompressed_bytes_max(log.config.max_message_bytes)
    read_to = log.start_offset
    for offset in offsets:
        if offset < read_to:
            continue
        data_range = log.read(offset, log.end_offset, _CHUNK_BYTES, at_least_one=True)
        if data_range is None:
            break
        for header, view in batches.batches(log.read_bytes(data_range)):
            start = max(header.base_offset, offset)
            inside = {at for at in wanted if start <= at < header.next_offset}
            if not inside or header.is_control:
                found |= dict.fromkeys(inside)
                continue
            try:
                decoded = list(batches.records(view, decompressed_bytes_max=bytes_max))
            except ApiError:
                unreadable |= inside
                continue
            found |= dict.fromkeys(inside)
            found |= {record.offset: record for record in decoded if record.offset in inside}
        read_to = data_range.end_offset
        for at in offsets:
            if offset <= at < read_to and at not in unreadable:
                found.setdefault(at, None)
    return found
