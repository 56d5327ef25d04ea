"""ShareFetch by hand where it is short: one partition, at most one acknowledgement, no error.

That is what a member of one partition sends and gets, whether it takes records one by one or many
at a time. Whatever is not exactly that is for the generic codec (docs/adr/0043). The property tests
in `tests/property/test_hot_share.py` hold these functions to the codec's bytes.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Final, NamedTuple

from ottla.model import Uuid
from ottla.protocol.primitives import write_unsigned_varint

_MODES_MIN: Final = 2  # the version from which on there are acquire modes and renewals
_NONE: Final = 1  # a count is stored plus one
_ONE: Final = 2
_END: Final = bytes((0, 0, _NONE, 0))  # no tags of partition and topic, nothing else, no tags
_BATCH_END: Final = bytes(1) + _END  # no tags of a batch either
_NAMES_MAX: Final = 4096  # members whose names are remembered
_NAME_BYTES_MAX: Final = 0x7F  # a longer one has a length of two bytes


class _Layout:
    """A request behind its names: limits, one topic, its id, one partition, its index, and how many
    batches are acknowledged: none, or one with its first and last offset and one type.
    """

    def __init__(self, limits: str) -> None:
        before = f">{limits}B16sBiB"
        self.count_at = Struct(before).size - 1
        self.plain = Struct(f"{before}{len(_END)}s")
        self.acknowledging = Struct(f"{before}qqBb{len(_BATCH_END)}s")


# Epoch, wait, bytes (2), records, size of batches; then the acquire mode, and whether it renews.
_FIRST: Final = _Layout("iiiiii")
_WITH_MODES: Final = _Layout("iiiiiibB")


class SingleShareFetch(NamedTuple):
    """A ShareFetch of one partition."""

    group_id: str
    member_id: str
    epoch: int
    wait_ms_max: int
    bytes_max: int
    records_max: int
    acquire_mode: int
    topic_id: Uuid
    partition: int
    acknowledged: tuple[int, int, int] | None  # first and last offset, type


def read_single(view: memoryview, position: int, version: int) -> SingleShareFetch | None:
    """The request whose body starts at `position` if it is short; None for any other."""
    has_modes = version >= _MODES_MIN
    layout = _WITH_MODES if has_modes else _FIRST
    try:
        member_at = position + view[position]
        at = member_at + view[member_at]
        is_acknowledging = view[at + layout.count_at] == _ONE
        unpack = (layout.acknowledging if is_acknowledging else layout.plain).unpack_from
        fields = unpack(view, at)
        names = _names(bytes(view[position:at]))
    except (error, IndexError, UnicodeDecodeError):
        return None
    if names is None:
        return None
    group_id, member_id = names
    if has_modes:
        epoch, wait_ms, _, bytes_max, records_max, _, mode, is_renewing, *rest = fields
        if is_renewing:
            return None
    else:
        epoch, wait_ms, _, bytes_max, records_max, _, *rest = fields
        mode = 0
    acknowledged = None
    if is_acknowledging:
        topics, topic_id, partitions, index, _, first, last, types, kind, end = rest
        if types != _ONE or end != _BATCH_END:
            return None
        acknowledged = first, last, kind
    else:
        topics, topic_id, partitions, index, batches, end = rest
        if batches != _NONE or end != _END:
            return None
    if topics != _ONE or partitions != _ONE:
        return None
    return tuple.__new__(
        SingleShareFetch,
        (
            group_id,
            member_id,
            epoch,
            wait_ms,
            bytes_max,
            records_max,
            mode,
            topic_id,
            index,
            acknowledged,
        ),
    )


@lru_cache(_NAMES_MAX)
def _names(head: bytes) -> tuple[str, str] | None:
    """The names of group and member; None if one is missing, or long."""
    group_bytes = head[0] if head else 0
    if not 1 < group_bytes <= _NAME_BYTES_MAX or group_bytes >= len(head):
        return None
    member_bytes = head[group_bytes]
    if not 1 < member_bytes <= _NAME_BYTES_MAX or group_bytes + member_bytes != len(head):
        return None
    return head[1:group_bytes].decode(), head[group_bytes + 1 :].decode()


# Size, correlation id, no tags; throttle time, no error (2), lock duration; one topic, its id, one
# partition, its index, no errors (4), no leader (3).
_RESPONSE: Final = Struct(">iiBihBiB16sBihBhBiiB")
_ACQUIRED: Final = Struct(">qqhB")  # first and last offset, deliveries, no tags
_ONE_ACQUIRED: Final = Struct(f">BqqhB{len(_END)}s")  # so many; and the end


class SingleShareFetched(NamedTuple):
    """A response about one partition in which nothing went wrong; `records` may be empty."""

    lock_ms: int
    topic_id: Uuid
    partition: int
    records: bytes
    acquired: Sequence[tuple[int, int, int]]  # first and last offset, deliveries

    def frame(self, correlation_id: int) -> bytes:
        """The whole response, in any version."""
        lock_ms, topic_id, index, records, acquired = self
        if len(acquired) == 1:
            ((first, last, deliveries),) = acquired
            behind = _ONE_ACQUIRED.pack(_ONE, first, last, deliveries, 0, _END)
        else:
            behind = _write_acquired(acquired)
        before = bytearray()
        write_unsigned_varint(before, len(records) + 1)
        size = _RESPONSE.size - 4 + len(before) + len(records) + len(behind)
        head = _RESPONSE.pack(
            size, correlation_id, 0, 0, 0, 0, lock_ms, _ONE, topic_id, _ONE, index,
            0, 0, 0, 0, -1, -1, 0,
        )  # fmt: skip
        return b"".join((head, before, records, behind))


def _write_acquired(acquired: Sequence[tuple[int, int, int]]) -> bytes:
    out = bytearray()
    write_unsigned_varint(out, len(acquired) + 1)
    for first, last, deliveries in acquired:
        out += _ACQUIRED.pack(first, last, deliveries, 0)
    return bytes(out + _END)
