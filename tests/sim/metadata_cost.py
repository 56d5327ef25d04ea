"""`python -m sim.metadata_cost`: what metadata of a cluster costs a broker, for docs/capacity.md.

CPU times of this process, so other work on the machine changes them little.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fakes.cluster_images import alive, broker
from ottla.cluster import layout
from ottla.cluster.controller.leaders import settle_leaders
from ottla.cluster.image import ClusterImage, topic_changes
from ottla.cluster.store import ChangeBatch, KeyChange, Revision
from ottla.cluster.values import (
    Change,
    PartitionImage,
    StoredTopic,
    broker_key,
    partition_key,
    ready_key,
    topic_key,
)
from ottla.config import BrokerConfig
from ottla.model import BrokerId, LeaderEpoch, Uuid

_BROKERS: Final = 50
_TOPIC_PARTITIONS: Final = 1000
_COMMIT: Final = 60  # partitions that change in one commit
_TIMES: Final = 20
_CONFIG: Final = BrokerConfig()


def main() -> None:
    for count in (2000, 20_000):
        stored = [
            (one.key, layout.encode(one.key, one.value)) for one in _changes(count) if one.value
        ]
        sizes = [len(key) + len(value) for key, value in stored if key.startswith("partitions/")]
        image, image_bytes = _loaded(stored)
        dead = BrokerId(0)
        left = image.apply([Change(broker_key(dead), None), Change(ready_key(dead), None)], _at(2))
        changes = len(settle_leaders(left, _CONFIG).changes)
        load_us = _us(lambda: _load(stored), 3) / count  # noqa: B023  called at once
        settled_us = _us(lambda: settle_leaders(image, _CONFIG)) / count  # noqa: B023
        left_us = _us(lambda: settle_leaders(left, _CONFIG))  # noqa: B023
        lines = {
            "bytes in the store": sum(sizes) / len(sizes),
            "bytes in an image": image_bytes / count,
            "µs to read from the store": load_us,
            "µs to apply from a commit": _apply_us(image),
            "µs to look at when settling": settled_us,
            "µs to decide when settling": (left_us - settled_us * count) / changes,
        }
        sys.stdout.write(f"of a partition, with {count} in the cluster\n")
        sys.stdout.writelines(f"  {name}: {figure:.2f}\n" for name, figure in lines.items())


def _changes(count: int) -> list[Change]:
    changes = [one for number in range(_BROKERS) for one in alive(broker(number), 1)]
    for first in range(0, count, _TOPIC_PARTITIONS):
        name, topic_id = f"topic{first}", Uuid(first.to_bytes(16, "big"))
        for index in range(_TOPIC_PARTITIONS):
            replicas = tuple(BrokerId((first + index + at) % _BROKERS) for at in range(3))
            made = PartitionImage(replicas[0], LeaderEpoch(0), replicas, replicas, 0)
            changes.append(Change(partition_key(topic_id, index), made))
        changes.append(Change(topic_key(name), StoredTopic(name, topic_id, _TOPIC_PARTITIONS)))
    return changes


def _load(stored: list[tuple[str, bytes]]) -> ClusterImage:
    written = ((Change(key, layout.decode(key, value)), _at(1)) for key, value in stored)
    return ClusterImage.load(written, _at(1))


def _loaded(stored: list[tuple[str, bytes]]) -> tuple[ClusterImage, int]:
    gc.collect()
    tracemalloc.start()
    image = _load(stored)
    gc.collect()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return image, size_bytes


def _apply_us(image: ClusterImage) -> float:
    """The time to read and apply one partition of a commit, and to find what differs."""
    topic = next(iter(image.topics.values()))

    def batch(number: int) -> ChangeBatch:
        changed = [replace(one, partition_epoch=number) for one in topic.partitions[:_COMMIT]]
        keys = [partition_key(topic.id, index) for index in range(_COMMIT)]
        written = zip(keys, changed, strict=True)
        return ChangeBatch(
            _at(number + 1),
            tuple(KeyChange(key, layout.encode(key, value)) for key, value in written),
        )

    batches = [batch(number) for number in range(1, _TIMES + 1)]
    begun_s = time.process_time()
    for one in batches:
        now = image.apply(layout.read_changes(one), one.revision)
        topic_changes(image.topics, now.topics, now.touched)
        image = now
    return (time.process_time() - begun_s) / (_TIMES * _COMMIT) * 1e6


def _us(work: Callable[[], object], times: int = _TIMES) -> float:
    begun_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun_s) / times * 1e6


def _at(revision: int) -> Revision:
    return Revision(revision)


if __name__ == "__main__":
    main()
