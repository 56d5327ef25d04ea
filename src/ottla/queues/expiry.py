"""Expiry of records: a header says how long after its timestamp a record may be delivered.

Records are looked at when a share group acquires them. Names of headers are searched as bytes
first, so that batches without such records cost one search.
"""

from collections.abc import Mapping
from typing import Final

from ottla.errors import ApiError
from ottla.records import batch as batches
from ottla.records.batch import CODEC_MASK, BatchHeader

TTL: Final = "ottla.ttl-ms"  # digits
TTL_BYTES: Final = TTL.encode()
_DIGITS_MAX: Final = 18  # more would not fit into a timestamp
_KNOWN_MAX: Final = 64  # compressed batches whose records were looked at
_NONE: Final[Mapping[int, int]] = {}


def expiry_ms(timestamp_ms: int, headers: tuple[tuple[str, bytes | None], ...]) -> int | None:
    """The time from which on a record is not delivered; None for no such time.

    A header that is not a number of milliseconds says nothing. Of several the last one counts.
    """
    value = next((value for name, value in reversed(headers) if name == TTL), None)
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    return timestamp_ms + int(value)


class Expiries:
    """The times at which the records of a log expire; those of some batches are remembered."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Mapping[int, int]] = {}  # by base offset and CRC

    def of(
        self, header: BatchHeader, view: memoryview, bytes_max: int, *, has_ttl: bool
    ) -> Mapping[int, int]:
        """The times by offset. `has_ttl` is True if the name of the header is in these bytes.

        A batch that cannot be read has none: its consumers will say so. `bytes_max` limits its
        size when it is decompressed.
        """
        if not header.attributes & CODEC_MASK:
            return _times(header, view, bytes_max) if has_ttl else _NONE
        key = header.base_offset, header.crc
        known = self._known.get(key)
        if known is None:
            known = _times(header, view, bytes_max)
            if len(self._known) >= _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known


def _times(header: BatchHeader, view: memoryview, bytes_max: int) -> Mapping[int, int]:
    try:
        if TTL_BYTES not in bytes(batches.open_payload(view, header, bytes_max)):
            return _NONE
        return {
            record.offset: end_ms
            for record in batches.records(view, decompressed_bytes_max=bytes_max)
            if (end_ms := expiry_ms(record.timestamp_ms, record.headers)) is not None
        }
    except ApiError:
        return _NONE
