"""What is wrong with segment files, seen from outside."""

import struct
from pathlib import Path

import pytest

from ottla.cli.log.segment_scan import Problem, ScannedBatch, SegmentCheck, find_segments, scan
from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import Record, build_batch, stamp


def batch(base_offset: int, *values: bytes, epoch: int = 0) -> bytes:
    built = build_batch([Record(timestamp_ms=TimestampMs(5), value=value) for value in values])
    stamp(built, Offset(base_offset), LeaderEpoch(epoch))
    return bytes(built)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Two batches, offsets 10 to 12, with true indexes."""
    first, second = batch(10, b"a", b"b"), batch(12, b"c")
    file = tmp_path / f"{10:020d}.log"
    file.write_bytes(first + second)
    file.with_suffix(".index").write_bytes(struct.pack(">ii", 2, len(first)))
    file.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 5, 1))
    return file


def problems(file: Path, floor: int = 0) -> list[str]:
    check = SegmentCheck(file, Offset(floor))
    list(check.run())
    return [problem.what for problem in check.problems]


def test_a_sound_segment_has_no_problems(segment: Path) -> None:
    check = SegmentCheck(segment, Offset(10))
    assert sum(check.run()) == segment.stat().st_size
    assert check.problems == []
    assert (check.batch_count, check.record_count, check.end_offset) == (2, 3, 13)


def test_a_flipped_bit_is_found(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert problems(segment) == ["the batch's CRC does not match its bytes"]


def test_half_a_batch_at_the_end_is_found(segment: Path) -> None:
    content = segment.read_bytes()
    segment.write_bytes(content + content[:70])
    (what,) = problems(segment)
    assert what.startswith("incomplete batch: ")
    segment.write_bytes(content + content[:30])
    assert problems(segment) == ["30 bytes after the last batch"]


def test_zeros_where_a_batch_should_be_are_found(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + bytes(100))
    assert problems(segment) == ["not a record batch"]


def test_offsets_that_go_back_are_found(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + batch(5, b"x"))
    assert problems(segment) == ["the batch begins at offset 5, expected 13 or more"]


def test_a_segment_that_overlaps_the_one_before_is_found(segment: Path) -> None:
    assert problems(segment, floor=11) == ["the batch begins at offset 10, expected 11 or more"]


def test_a_leader_epoch_that_goes_back_is_found(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + batch(13, b"x", epoch=3) + batch(14, b"y", epoch=2))
    assert problems(segment) == ["the leader epoch is lower than that of the batch before"]


@pytest.mark.parametrize(
    ("suffix", "content", "what"),
    [
        (".index", struct.pack(">ii", 2, 7), "offset 12 is not at byte 7"),
        (".index", struct.pack(">iiii", 2, 100, 1, 200), "the entries do not ascend"),
        (".index", b"12345", "it ends inside an entry"),
        (".timeindex", struct.pack(">qi", 5, 99), "it has offsets that the segment does not"),
        (".timeindex", struct.pack(">qiqi", 5, 1, 4, 2), "the entries do not ascend"),
        (".txnindex", b"123", "half an entry"),
    ],
)
def test_an_index_that_lies_is_found(segment: Path, suffix: str, content: bytes, what: str) -> None:
    segment.with_suffix(suffix).write_bytes(content)
    assert any(problem.startswith(what) for problem in problems(segment))


def test_missing_indexes_and_reserved_room_are_no_problem(segment: Path) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(10 << 20))  # as much as Apache reserves
    segment.with_suffix(".timeindex").unlink()
    assert problems(segment) == []


def test_a_scan_says_where_each_batch_lies(segment: Path) -> None:
    first, second = scan(segment)
    assert isinstance(first, ScannedBatch)
    assert isinstance(second, ScannedBatch)
    assert (first.position, first.header.base_offset) == (0, 10)
    assert (second.position, second.header.base_offset) == (len(first.content), 12)


def test_an_empty_segment_is_sound(tmp_path: Path) -> None:
    file = tmp_path / f"{0:020d}.log"
    file.touch()
    assert problems(file) == []


def test_segments_are_found_in_order_however_deep(tmp_path: Path) -> None:
    names = ["t-0/00000000000000000005.log", "t-0/00000000000000000000.log", "t-1/notes.log"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_segments(tmp_path) == [tmp_path / names[1], tmp_path / names[0]]


def test_a_problem_says_where_it_is() -> None:
    assert str(Problem(Path("a.log"), "bad", 7)) == "a.log at byte 7: bad"
    assert str(Problem(Path("a.index"), "bad")) == "a.index: bad"
