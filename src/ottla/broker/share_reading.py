"""Reading a log for a share partition: stretches of offsets, whole batches, durations."""

from collections.abc import Iterator

from ottla.model import Offset
from ottla.queues.share_partition import Stretch
from ottla.records import batch as batches
from ottla.storage.log import Log


def stretches_of(
    data: bytes, at: int, end: int, partition_log: Log, read_committed: bool
) -> Iterator[Stretch]:
    """The offsets from `at` on: batches with records to deliver, and all that lies between."""
    aborted = partition_log.aborted_transactions(Offset(at), Offset(end)) if read_committed else []
    position = at
    for header, _ in batches.batches(data):
        if header.next_offset <= position:
            continue
        if header.base_offset > position:
            yield Stretch(Offset(position), Offset(header.base_offset), False)
            position = header.base_offset
        is_aborted = header.is_transactional and any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
        has_records = not header.is_control and header.record_count > 0 and not is_aborted
        yield Stretch(Offset(position), header.next_offset, has_records)
        position = header.next_offset
    if end > position:
        yield Stretch(Offset(position), Offset(end), False)


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
