"""What can be asked about a group's progress: remember it, and recall it."""

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, DeadlineExceeded, Unreachable, check
from ottla.client.partitions import by_topic
from ottla.model import BrokerId, Offset, TopicPartition
from ottla.protocol.messages.coordination import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

_BY_NAME: Final = 9  # the last versions that call topics by their names
_GROUP: Final = 0  # what kind of coordinator is looked for
_AGAIN: Final = (Unreachable, ConnectionLost, DeadlineExceeded)  # asking twice does no harm


async def coordinator_of(client: Client, group: str) -> BrokerId:
    """The broker that looks after a group."""
    request = FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=[group])
    answer = await client.ask_any(request, FindCoordinatorResponse)
    if answer.coordinators:
        found = answer.coordinators[0]
        check(found.error_code, f"group {group}", found.error_message)
        return BrokerId(found.node_id)
    check(answer.error_code, f"group {group}", answer.error_message)
    return BrokerId(answer.node_id)


async def commit_offsets(
    client: Client, group: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    """Remember how far a group has read. It must have no members: they commit for themselves."""
    await client.retry(lambda: _commit(client, group, offsets), on=_AGAIN)


async def _commit(client: Client, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    coordinator = await coordinator_of(client, group)
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=tp.partition, committed_offset=offsets[tp]
                )
                for tp in tps
            ],
        )
        for topic, tps in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    answer = await client.ask_broker(
        coordinator, request, OffsetCommitResponse, version_max=_BY_NAME
    )
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code, f"group {group}, {topic.name}-{partition.partition_index}")


async def committed_offsets(
    client: Client, group: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """How far a group has read; partitions it has committed nothing for are left out."""
    wanted = list(tps)
    return await client.retry(lambda: _committed(client, group, wanted), on=_AGAIN)


async def _committed(
    client: Client, group: str, tps: list[TopicPartition]
) -> dict[TopicPartition, Offset]:
    coordinator = await coordinator_of(client, group)
    indexes = {topic: [tp.partition for tp in theirs] for topic, theirs in by_topic(tps).items()}
    request = OffsetFetchRequest(
        group_id=group,
        topics=[
            OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in indexes.items()
        ],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
                    for topic, numbers in indexes.items()
                ],
            )
        ],
        require_stable=True,
    )
    answer = await client.ask_broker(
        coordinator, request, OffsetFetchResponse, version_max=_BY_NAME
    )
    found = dict[TopicPartition, Offset]()
    check(answer.error_code, f"group {group}")
    topics = [(topic.name, topic.partitions) for topic in answer.topics]
    for result in answer.groups:
        check(result.error_code, f"group {group}")
        topics += [(topic.name, topic.partitions) for topic in result.topics]  # type: ignore[misc]
    for name, partitions in topics:
        for partition in partitions:
            tp = TopicPartition(name, partition.partition_index)
            check(partition.error_code, f"group {group}, {tp}")
            if partition.committed_offset >= 0:
                found[tp] = Offset(partition.committed_offset)
    return found
