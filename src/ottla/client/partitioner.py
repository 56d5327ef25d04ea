"""Choice of a record's partition: by key as in Java and librdkafka (murmur2), else sticky."""

from random import Random
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


class Partitioner:
    """Keyed records by hash; the others stay on one partition until `next_batch`.

    As Java's sticky partitioner: records without a key that are sent together share a batch, and
    the batches are spread.
    """

    def __init__(self, partition_count: int, rng: Random) -> None:
        assert partition_count > 0, f"a topic with {partition_count} partitions"
        self.partition_count = partition_count
        self._rng = rng
        self._unkeyed = rng.randrange(partition_count)

    def choose(self, key: bytes | None) -> int:
        """The partition for a record with this key."""
        if key is None:
            return self._unkeyed
        return partition_of_key(key, self.partition_count)

    def next_batch(self) -> None:
        """Choose another partition for records without a key, if there is another."""
        if self.partition_count > 1:
            step = self._rng.randrange(1, self.partition_count)
            self._unkeyed = (self._unkeyed + step) % self.partition_count


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of `key` in Java's default partitioner."""
    return (murmur2(key) & _POSITIVE) % partition_count


def murmur2(data: bytes) -> int:
    """Austin Appleby's 32-bit MurmurHash2 with the seed of Kafka's clients."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15
