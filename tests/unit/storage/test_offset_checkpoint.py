"""Offsets of logs in a checkpoint: each for the log of one topic id."""

from ottla.model import Offset, TopicPartition, Uuid
from ottla.storage.offset_checkpoint import (
    NotedOffset,
    decode_offsets,
    encode_offsets,
    noted_offset,
)

ORDERS = TopicPartition("orders", 3)
ONE, OTHER = Uuid(bytes(range(16))), Uuid(bytes(range(1, 17)))


def test_lines_are_decoded_as_they_were_encoded() -> None:
    noted = {
        ORDERS: NotedOffset(ONE, Offset(7)),
        TopicPartition("a.b_c-d", 0): NotedOffset(None, Offset(2**40)),
    }
    lines = encode_offsets(noted)
    assert lines == [f"orders 3 AAECAwQFBgcICQoLDA0ODw {7}", f"a.b_c-d 0 {2**40}"]
    assert decode_offsets(lines) == noted


def test_an_offset_counts_for_the_log_of_its_topic_id() -> None:
    noted = {ORDERS: NotedOffset(ONE, Offset(7))}
    assert noted_offset(noted, ORDERS, ONE) == 7
    assert noted_offset(noted, ORDERS, None) == 7, "a log that does not say its id"
    assert noted_offset(noted, ORDERS, OTHER) is None, "made again under the same name"
    assert noted_offset(noted, TopicPartition("orders", 4), ONE) is None


def test_an_offset_of_an_older_ottla_counts_for_the_log_of_its_name() -> None:
    noted = {ORDERS: NotedOffset(None, Offset(7))}
    assert noted_offset(noted, ORDERS, ONE) == 7
