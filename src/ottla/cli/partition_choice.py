"""The partitions that a command line names, checked against the cluster."""

from collections.abc import Mapping

from ottla.client.client import Client
from ottla.errors import UsageRefused
from ottla.model import TopicPartition


async def choose_partitions(
    client: Client, choices: Mapping[str, frozenset[int] | None]
) -> list[TopicPartition]:
    """The chosen partitions of each topic in order; None means all partitions."""
    view = await client.describe(list(choices))
    tps = list[TopicPartition]()
    for topic, wanted in choices.items():
        count = len(view.topics[topic].partitions)
        indexes = range(count) if wanted is None else sorted(wanted)
        for index in indexes:
            check_partition(topic, index, count)
        tps += [TopicPartition(topic, index) for index in indexes]
    return tps


def check_partition(topic: str, index: int, count: int) -> None:
    """Refuse a partition that a topic with `count` partitions does not have."""
    if index >= count:
        raise UsageRefused(f"topic {topic} has no partition {index}, only 0 to {count - 1}")
