"""Reading a log for a share partition: stretches of offsets, whole batches, durations."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.errors import ApiError
from ottla.model import Offset
from ottla.queues.key_order import key_digest
from ottla.queues.lens import Lens, hides_any, shown_stretches
from ottla.queues.share_partition import Stretch
from ottla.records import batch as batches
from ottla.records.batch import HIDES, BatchHeader, Record
from ottla.records.dead_letter_headers import FOR_GROUP
from ottla.records.record_slices import payload_of, slice_records
from ottla.replication.partition import LeaderPartition
from ottla.storage.log import Log

_CHUNK_BYTES: Final = 256 * 1024
_FOR_GROUP_BYTES: Final = FOR_GROUP.encode()


class Reading(NamedTuple):
    """How a share group reads a log."""

    group_id: str
    read_committed: bool
    stable_end: Offset  # all transactions below are decided


def stretches_of(
    data: bytes, at: int, end: int, partition_log: Log, reading: Reading
) -> Iterator[Stretch]:
    """The offsets from `at` on: batches with records to deliver, and all that lies between.

    Records that are for one group are redriven ones. They are delivered once their transaction is
    committed, also to a group that reads uncommitted records: else they might come twice.
    """
    has_addressed = _FOR_GROUP_BYTES in data
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
        if header.attributes & HIDES and has_records:
            yield from _shown(view, header, position, partition_log)
        elif is_addressed and has_records:
            yield from _addressed(view, position, header.next_offset, reading.group_id)
        else:
            yield Stretch(Offset(position), header.next_offset, has_records)
        position = header.next_offset
    if end > position:
        yield Stretch(Offset(position), Offset(end), False)


def _shown(view: memoryview, header: BatchHeader, at: int, partition_log: Log) -> Iterator[Stretch]:
    """The stretches of a batch in which records are hidden: those are gaps."""
    position = Offset(at)
    bytes_max = batches.decompressed_bytes_max(partition_log.config.max_message_bytes)
    for start, end in shown_stretches(view, header, bytes_max):
        if end <= position:
            continue
        if start > position:
            yield Stretch(position, start, False)
        yield Stretch(max(start, position), end, True)
        position = end
    if position < header.next_offset:
        yield Stretch(position, header.next_offset, False)


def seen_of(data: bytes, partition_log: Log) -> bytes:
    """The batches as a reader sees them."""
    if not partition_log.may_hide or not hides_any(data):
        return data
    lens = Lens(batches.decompressed_bytes_max(partition_log.config.max_message_bytes))
    lens.take(data, is_whole=True)
    return lens.finish().data


def _addressed(view: memoryview, at: int, end: Offset, group_id: str) -> Iterator[Stretch]:
    """The stretches of a batch in which some records are for one group alone.

    Batches that are compressed are not looked into: redriven records are not compressed.
    """
    name = group_id.encode()
    position = Offset(at)
    for record in batches.records(view):
        addressee = dict(record.headers).get(FOR_GROUP)
        if addressee is None or addressee == name or record.offset < position:
            continue
        if record.offset > position:
            yield Stretch(position, record.offset, True)
        position = Offset(record.offset + 1)
        yield Stretch(record.offset, position, False)
    if position < end:
        yield Stretch(position, end, True)


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


def covering(data: bytes, first: Offset, last: Offset) -> bytes:
    """The batches from the one that holds `first` to the one that holds `last`."""
    start = end = 0
    for header, _ in batches.batches(data):
        if header.last_offset < first:
            start = end = end + header.size_bytes
        elif header.base_offset <= last:
            end += header.size_bytes
        else:
            break
    return data[start:end]


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
