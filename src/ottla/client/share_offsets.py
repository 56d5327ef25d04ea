"""Requests on the start offsets of share groups: everything below is finished."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Refused, check
from ottla.client.partitions import by_topic
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)


class ShareOffset(NamedTuple):
    """The start offset of a partition, and how many records are not finished; None if unknown."""

    start: Offset | None
    lag: int | None


async def describe_share_offsets(
    client: Client, group_id: str
) -> dict[TopicPartition, ShareOffset]:
    """Every partition that a share group has begun to read."""

    async def attempt() -> dict[TopicPartition, ShareOffset]:
        wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
        response = await client.send_to_coordinator(
            group_id,
            DescribeShareGroupOffsetsRequest(groups=[wanted]),
            DescribeShareGroupOffsetsResponse,
        )
        (group,) = response.groups
        check(group.error_code, f"group {group_id}", group.error_message)
        return {
            TopicPartition(topic.topic_name, partition.partition_index): ShareOffset(
                Offset(partition.start_offset) if partition.start_offset >= 0 else None,
                partition.lag if partition.lag >= 0 else None,
            )
            for topic in group.topics
            for partition in topic.partitions
        }

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


async def alter_share_offsets(
    client: Client, group_id: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    """Have a share group without members go on from these offsets."""

    async def attempt() -> None:
        request = AlterShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(
                            partition_index=tp.partition, start_offset=offsets[tp]
                        )
                        for tp in tps
                    ],
                )
                for topic, tps in by_topic(sorted(offsets)).items()
            ],
        )
        response = await client.send_to_coordinator(
            group_id, request, AlterShareGroupOffsetsResponse
        )
        check(response.error_code, f"group {group_id}", response.error_message)
        for topic in response.responses:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic_name, partition.partition_index)
                check(partition.error_code, f"group {group_id}, {tp}", partition.error_message)

    await client.retry(attempt, on=TRANSPORT_ERRORS)


async def delete_share_offsets(
    client: Client, group_id: str, topics: Iterable[str]
) -> dict[str, Refused]:
    """Forget a share group's offsets of topics; returns the refusals by topic."""
    names = list(topics)

    async def attempt() -> dict[str, Refused]:
        request = DeleteShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names],
        )
        response = await client.send_to_coordinator(
            group_id, request, DeleteShareGroupOffsetsResponse
        )
        check(response.error_code, f"group {group_id}", response.error_message)
        return {
            topic.topic_name: Refused(
                ErrorCode(topic.error_code),
                f"group {group_id}, topic {topic.topic_name}",
                topic.error_message or "",
            )
            for topic in response.responses
            if topic.error_code
        }

    return await client.retry(attempt, on=TRANSPORT_ERRORS)
