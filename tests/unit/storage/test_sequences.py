"""One producer's sequence in several logs."""

import pytest

from fakes import build
from ottla.config import TopicConfig
from ottla.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence
from ottla.model import MAPPED_IDS_FROM, Offset, ProducerEpoch, TimestampMs
from ottla.records.batch import SEQUENCE_MASK, BatchHeader, read_header
from ottla.storage.producers import ProducedBatch, Producer, Producers
from ottla.storage.sequences import find_repeated


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    batch = build.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return read_header(batch)


def state(*numbers: tuple[int, int], epoch: int = 0) -> Producer:
    """A producer whose batches have these first and last sequences."""
    producer = Producer(ProducerEpoch(epoch))
    producer.batches = tuple(
        ProducedBatch(first, last, Offset(100 + first), Offset(100 + last), TimestampMs(0))
        for first, last in numbers
    )
    if numbers:
        producer.next_sequence = (numbers[-1][1] + 1) & SEQUENCE_MASK
    return producer


def test_a_repeated_batch_is_found_in_the_log_that_has_it() -> None:
    repeated = find_repeated(header(3, 2), [state((0, 2)), None, state((3, 4))])
    assert repeated is not None
    assert (repeated.at, repeated.batch.base_offset) == (2, 103)


def test_the_batch_that_one_log_expects_next_may_be_in_another() -> None:
    repeated = find_repeated(header(3), [state((0, 2)), state((3, 3))])
    assert repeated is not None
    assert repeated.at == 1


def test_a_batch_continues_the_newest_sequence() -> None:
    assert find_repeated(header(5), [state((0, 2)), state((3, 4))]) is None
    assert find_repeated(header(9), [None, None]) is None
    with pytest.raises(OutOfOrderSequence, match="expected is 5"):
        find_repeated(header(6), [state((3, 4)), state((0, 2))])


def test_sequences_wrap() -> None:
    old, new = state((SEQUENCE_MASK - 1, SEQUENCE_MASK - 1)), state((SEQUENCE_MASK, 2))
    assert find_repeated(header(3), [old, new]) is None
    assert find_repeated(header(3), [new, old]) is None


def test_an_epoch_begins_with_sequence_zero_and_ends_those_before() -> None:
    assert find_repeated(header(0, epoch=2), [state((0, 2), epoch=1)]) is None
    with pytest.raises(OutOfOrderSequence, match="expected is 0"):
        find_repeated(header(4, epoch=2), [state((0, 2), epoch=1)])
    with pytest.raises(InvalidProducerEpoch, match="older than 2"):
        find_repeated(header(0, epoch=1), [state((0, 2), epoch=1), state(epoch=2)][1:])


def test_a_marker_alone_tells_nothing_of_the_sequence() -> None:
    assert find_repeated(header(4), [state()]) is None
    with pytest.raises(OutOfOrderSequence, match="expected is 3"):
        find_repeated(header(4), [state(), state((0, 2))])


def test_ids_of_forwarded_producers_have_to_be_introduced() -> None:
    producers, config = Producers(), TopicConfig()
    forwarded = header(4, producer=MAPPED_IDS_FROM + 7)
    with pytest.raises(InvalidRecord, match="InitProducerId"):
        producers.admit(forwarded, config, build.NOW_MS)
    producers.introduce(forwarded, config, build.NOW_MS)
    assert producers.admit(forwarded, config, build.NOW_MS) is None
