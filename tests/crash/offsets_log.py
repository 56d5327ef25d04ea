"""What a coordinator wrote about groups, read as any consumer could read it."""

import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from crash.group_judgement import Partition
from crash.load import SILENT
from crash.topics import PATIENCE_S
from ottla.coordinator.groups.records import (
    GroupStored,
    OffsetCommitted,
    from_bytes,
)
from ottla.coordinator.runtime.log_entries import UnreadableRecord

_TOPIC = "__consumer_offsets"
_EPOCH_KEY = 3  # of a group whose coordinator assigns (KIP-848)


@dataclass(slots=True)
class Written:
    """About one group: every commit in its order, and each generation that had members."""

    commits: dict[Partition, list[int]] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)

    def steps_back(self) -> list[tuple[Partition, int, int]]:
        """Commits that are less than the one before them."""
        return [
            (partition, before, after)
            for partition, offsets in self.commits.items()
            for before, after in pairwise(offsets)
            if after < before
        ]


def read_written(address: str, groups: Iterable[str]) -> dict[str, Written]:
    """All that was written about these groups since the broker's first start."""
    written = {group: Written() for group in groups}
    for key, value in _records(address):
        if value is None:
            continue
        if key[:2] == struct.pack(">h", _EPOCH_KEY):
            _note_epoch(written, key, value)
            continue
        try:
            record = from_bytes(key, value)
        except UnreadableRecord:
            continue
        match record:
            case OffsetCommitted(group_id=group, tp=(topic, index)) if group in written:
                written[group].commits.setdefault((topic, index), []).append(record.offset)
            case GroupStored(group_id=group) if group in written and record.members:
                written[group].generations.add(record.generation)
            case _:
                pass
    return written


def _note_epoch(written: dict[str, Written], key: bytes, value: bytes) -> None:
    (size,) = struct.unpack_from(">h", key, 2)
    group = key[4 : 4 + size].decode()
    if group in written:
        written[group].generations.add(struct.unpack_from(">i", value, 2)[0])


def _records(address: str) -> Iterable[tuple[bytes, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "logger": SILENT,
        }
    )
    try:
        partitions = consumer.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC].partitions
        ends = {
            index: consumer.get_watermark_offsets(TopicPartition(_TOPIC, index), PATIENCE_S)[1]
            for index in partitions
        }
        left = {index for index, end in ends.items() if end}
        consumer.assign([TopicPartition(_TOPIC, index, OFFSET_BEGINNING) for index in left])
        deadline_s = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline_s, f"{left} never came to an end"
            for message in consumer.consume(10_000, timeout=0.1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                yield _bytes(message.key()), message.value()
                offset, index = message.offset(), message.partition()
                if offset is not None and offset >= ends[index] - 1:
                    left.discard(index)
    finally:
        consumer.close()


def _bytes(key: object) -> bytes:
    assert isinstance(key, bytes), "every record about groups has a key"
    return key
