"""Batches that are walked once give what looking at each of them gives."""

from dataclasses import dataclass, field

from hypothesis import assume, given
from hypothesis import strategies as st

from ottla.broker.share_reading import ReadBatches, Reading, stretches_of
from ottla.config import TopicConfig
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs
from ottla.queues.expiry import TTL, Expiries
from ottla.queues.share_partition import Stretch
from ottla.records.batch import ATTRIBUTES_AT, HIDES_ALL, Record, build_batch
from ottla.records.compression import Codec

KINDS = ["plain"] * 8 + ["compressed", "transactional", "marker", "expired", "hole", "hidden"]
NOW_MS = 1_000_000


@dataclass
class FakeLog:
    """A log, as far as stretches are asked of it: nothing was aborted."""

    config: TopicConfig = field(default_factory=TopicConfig)

    def aborted_transactions(self, start: Offset, end: Offset) -> list[object]:
        return []


@dataclass
class Written:
    """A piece of a log: its batches as bytes, and each with its first offset and the next one."""

    data: bytes
    bounds: list[tuple[int, int]]
    parts: list[bytes]
    is_plain: bool


@st.composite
def logs(draw: st.DrawFn) -> Written:
    offset = draw(st.integers(0, 2**40))
    parts: list[bytes] = []
    bounds: list[tuple[int, int]] = []
    is_plain = True
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        is_plain = is_plain and (kind == "plain" or (kind == "hole" and not bounds))
        count = 1 if kind == "marker" else draw(st.integers(1, 4))
        headers = ((TTL, b"1"),) if kind == "expired" else ()
        if kind == "hole":
            offset += 3
        by_producer = kind in {"marker", "transactional"}
        batch = build_batch(
            [Record(value=b"v" * 9, timestamp_ms=TimestampMs(5), headers=headers)] * count,
            base_offset=Offset(offset),
            codec=Codec.GZIP if kind == "compressed" else Codec.NONE,
            producer_id=ProducerId(1 if by_producer else -1),
            producer_epoch=ProducerEpoch(0 if by_producer else -1),
            is_transactional=by_producer,
            is_control=kind == "marker",
        )
        if kind == "hidden":
            batch[ATTRIBUTES_AT] |= HIDES_ALL >> 8
        parts.append(bytes(batch))
        bounds.append((offset, offset + count))
        offset += count
    return Written(b"".join(parts), bounds, parts, is_plain)


def looked_at(data: bytes, at: int, end: int) -> list[Stretch]:
    reading = Reading("g", False, Offset(end), TimestampMs(NOW_MS), Expiries())
    return list(stretches_of(data, at, end, FakeLog(), reading))  # type: ignore[arg-type]


@given(logs(), st.data())
def test_plain_batches_have_the_stretches_that_looking_at_each_gives(
    log: Written, data: st.DataObject
) -> None:
    start, end = log.bounds[0][0], log.bounds[-1][1]
    found = ReadBatches(log.data, Offset(end))
    assert found.is_plain == log.is_plain
    at = Offset(data.draw(st.integers(start, end - 1)))
    assert found.has(at)
    assert not found.has(end)
    assert not found.has(start - 1)
    assert looked_at(found.rest(at), at, end) == looked_at(log.data, at, end)
    if found.is_plain:
        assert found.stretches(at) == looked_at(log.data, at, end)


@given(logs(), st.data())
def test_the_batches_that_hold_some_offsets_are_found_by_them(
    log: Written, data: st.DataObject
) -> None:
    inside = [at for start, end in log.bounds for at in range(start, end)]
    first = data.draw(st.sampled_from(inside))
    last = data.draw(st.sampled_from([at for at in inside if at >= first]))
    holding = [
        part
        for (start, end), part in zip(log.bounds, log.parts, strict=True)
        if start <= last and end > first
    ]
    found = ReadBatches(log.data, Offset(log.bounds[-1][1]))
    assert found.covering(Offset(first), Offset(last)) == b"".join(holding)


@given(logs())
def test_batches_that_end_elsewhere_than_the_read_are_not_plain(log: Written) -> None:
    end = log.bounds[-1][1]
    assert not ReadBatches(log.data, Offset(end + 1)).is_plain
    assert not ReadBatches(log.data[:-1], Offset(end)).is_plain


@given(logs(), st.sampled_from([-12, -1, 0, 48]) | st.integers(-(2**31), 2**31 - 1))
def test_a_length_that_cannot_be_ends_the_walk(log: Written, length: int) -> None:
    """49 bytes follow the length in the smallest batch."""
    assume(length < 49 or length > len(log.data))
    data = log.data[:8] + length.to_bytes(4, "big", signed=True) + log.data[12:]
    assert not ReadBatches(data, Offset(log.bounds[-1][1])).is_plain
