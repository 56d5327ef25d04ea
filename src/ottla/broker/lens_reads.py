"""Reads of a log through the lens: for consumers of topics on which records wait."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.model import Offset, Position
from ottla.queues.lens import Lens, hides_any, shown_aborted
from ottla.records.batch import decompressed_bytes_max
from ottla.storage.files import CopiedFile
from ottla.storage.log import Log
from ottla.storage.log_read import FileRange

SCAN_BYTES: Final = 1 << 20  # of a log that are looked at for one partition: about a millisecond


class Seen(NamedTuple):
    """The part of a log that a reader gets."""

    records: FileRange
    aborted: Sequence[tuple[int, int]] | None  # None as long as a reader sees the log as it is
    is_skip: bool  # it only takes the reader over hidden records
    is_cut: bool  # there is more, and the reader should ask for it at once


def read_seen(
    log: Log, start: Offset, end: Offset, bytes_max: int, *, at_least_one: bool
) -> Seen | None:
    """Whole batches from `start` on, as a reader sees them; the arguments are those of `Log.read`.

    A run of hidden records is passed over as far as `SCAN_BYTES` reach.
    """
    bytes_max = min(bytes_max, SCAN_BYTES)
    found = log.read(start, end, bytes_max, at_least_one=at_least_one)
    if found is None:
        return None
    data = log.read_bytes(found)
    if not hides_any(data):
        return Seen(found, None, False, False)
    lens = Lens(decompressed_bytes_max(log.config.max_message_bytes))
    is_whole, looked_bytes = lens.take(data), found.size_bytes
    at = found.end_offset
    while is_whole and lens.is_skip and at < end and looked_bytes < SCAN_BYTES:
        following = log.read(at, end, SCAN_BYTES, at_least_one=True)
        if following is None:
            break
        is_whole = lens.take(log.read_bytes(following))
        looked_bytes += following.size_bytes
        at = following.end_offset
    view = lens.finish()
    aborted = shown_aborted(
        (
            (one.producer_id, one.first_offset, one.last_offset)
            for one in log.aborted_transactions(start, view.end_offset)
        ),
        view.transactional,
    )
    seen = FileRange(CopiedFile(view.data), Position(0), len(view.data), view.end_offset, start)
    return Seen(seen, aborted, view.is_skip, is_cut=view.is_skip and view.end_offset < end)
