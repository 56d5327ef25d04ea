"""Keys must land where other clients put them, or a key's order is lost between two producers."""

from random import Random

import pytest
from aiokafka.partitioner import murmur2 as reference_murmur2

from ottla.client.partitioner import Partitioner, murmur2, partition_of_key


@pytest.mark.parametrize("length", range(14))
def test_the_hash_is_the_one_other_clients_use(length: int) -> None:
    chance = Random(length)
    for _ in range(50):
        key = chance.randbytes(length)
        assert murmur2(key) == reference_murmur2(key) & 0xFFFFFFFF


# Values that Apache Kafka's own test of its hash lists, as unsigned numbers.
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_keys_have_their_known_hashes(key: bytes, value: int) -> None:
    assert murmur2(key) == value & 0xFFFFFFFF


def test_a_partition_is_never_negative() -> None:
    assert all(0 <= partition_of_key(bytes([n]), 7) < 7 for n in range(256))


def test_records_without_a_key_share_a_partition_until_the_next_batch() -> None:
    partitioner = Partitioner(5, Random(1))
    first = {partitioner.choose(None) for _ in range(20)}
    partitioner.next_batch()
    second = {partitioner.choose(None) for _ in range(20)}
    assert len(first) == len(second) == 1
    assert first != second


def test_a_topic_with_one_partition_has_nowhere_else_to_go() -> None:
    partitioner = Partitioner(1, Random(1))
    partitioner.next_batch()
    assert partitioner.choose(None) == partitioner.choose(b"key") == 0


def test_a_key_stays_where_it_is_when_batches_change() -> None:
    partitioner = Partitioner(6, Random(1))
    before = partitioner.choose(b"customer-7")
    partitioner.next_batch()
    assert partitioner.choose(b"customer-7") == before
