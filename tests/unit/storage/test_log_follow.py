"""Batches of a leader, appended together: the same log as one after the other."""

import pytest

from fakes import build
from fakes.logs import SMALL, names_of
from fakes.memory_files import MemoryFiles
from ottla.errors import CorruptBatch
from ottla.records.batch import HEADER_BYTES, HIDES_ALL, assemble, read_header
from ottla.storage.log import Log


def sent() -> list[bytes]:
    """Batches as a leader has placed them: of several epochs and producers."""
    offset, batches = 0, list[bytes]()
    for number in range(40):
        batch = build.batch(
            1 + number % 3,
            value=bytes(number * 7),
            base_offset=offset,
            leader_epoch=3 + number // 15,
            producer_id=number % 4,
            producer_epoch=0,
            base_sequence=sum(1 + other % 3 for other in range(number) if other % 4 == number % 4),
        )
        batches.append(bytes(batch))
        offset += 1 + number % 3
    return batches


def content(files: MemoryFiles, log: Log) -> dict[str, bytes]:
    return {name: files.read_whole(log.directory / name) for name in names_of(files, log, "")}


def test_batches_together_make_the_log_that_they_make_one_after_the_other() -> None:
    one_files, all_files = MemoryFiles(), MemoryFiles()
    one, together = build.log(one_files, SMALL), build.log(all_files, SMALL)
    for batch in sent():
        one.append_as_follower(bytearray(batch), build.NOW_MS)
    together.append_as_follower(bytearray(b"".join(sent())), build.NOW_MS)
    assert len(together.sealed_segments) >= 3
    assert together.epochs.entries() == one.epochs.entries()
    assert together.producers.encode() == one.producers.encode()
    assert (together.size_bytes, together.end_offset) == (one.size_bytes, one.end_offset)
    for log in (one, together):
        log.close()
    assert content(all_files, together) == content(one_files, one)
    assert all_files.counts["append"] < one_files.counts["append"]


@pytest.mark.parametrize("number", [0, 7, 39])
def test_one_batch_that_is_not_intact_keeps_all_from_being_written(number: int) -> None:
    log = build.log(MemoryFiles(), SMALL)
    batches = [bytearray(batch) for batch in sent()]
    batches[number][-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        log.append_as_follower(bytearray(b"".join(batches)), build.NOW_MS)
    assert (log.end_offset, log.size_bytes) == (0, 0)
    assert log.epochs.entries() == []


def test_a_part_of_a_batch_is_refused() -> None:
    log = build.log(MemoryFiles(), SMALL)
    with pytest.raises(CorruptBatch, match="a part of a batch"):
        log.append_as_follower(bytearray(b"".join(sent())[:-3]), build.NOW_MS)
    assert log.end_offset == 0


def test_hidden_records_of_a_leader_are_hidden_before_the_setting_is_known_here() -> None:
    log = build.log(MemoryFiles(), SMALL)
    shown, hidden = build.batch(), build.batch(base_offset=1)
    header = read_header(hidden)
    hidden = assemble(
        header._replace(attributes=header.attributes | HIDES_ALL), hidden[HEADER_BYTES:]
    )
    log.append_as_follower(bytearray(shown), build.NOW_MS)
    assert not log.may_hide
    log.append_as_follower(bytearray(hidden), build.NOW_MS)
    assert log.may_hide
