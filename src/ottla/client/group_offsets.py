"""Offsets that a group has committed: fetch, commit, delete.

Apart from `groups`, because most callers commit offsets and describe no group.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Refused, check, check_group
from ottla.client.partitions import by_topic
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

# The last versions with topic names: they need no topic ids.
_COMMIT_BY_NAME: Final = 9
_FETCH_BY_NAME: Final = 9


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership in a group: the member id and its generation."""

    member_id: str
    generation: int


NO_MEMBER: Final = Membership("", -1)  # commits to a group from outside


async def committed_offsets(
    client: Client, group_id: str, tps: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Offset]:
    """Committed offsets of these partitions, or of all for None; others are left out."""
    topics = None if tps is None else by_topic(tps)
    return await _committed(client, group_id, _offset_fetch_request(group_id, topics))


async def stable_offsets(client: Client, group_id: str) -> dict[TopicPartition, Offset]:
    """`committed_offsets` of all partitions, once no open transaction may still change them.

    Apache Kafka leaves out partitions whose first commit is in an open transaction: a caller that
    needs those has to make sure that none is open.
    """
    request = _offset_fetch_request(group_id, None, require_stable=True)
    return await _committed(client, group_id, request)


async def _committed(
    client: Client, group_id: str, request: OffsetFetchRequest
) -> dict[TopicPartition, Offset]:
    async def attempt() -> dict[TopicPartition, Offset]:
        response = await client.send_to_coordinator(
            group_id,
            request,
            OffsetFetchResponse,
            version_max=_FETCH_BY_NAME,
        )
        # Since version 8 the response has one result per group; before, it is the result.
        found = response.groups[0] if response.groups else response
        check_group(found.error_code, group_id)
        committed = dict[TopicPartition, Offset]()
        for topic in found.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, f"group {group_id}, {tp}")
                if partition.committed_offset >= 0:
                    committed[tp] = Offset(partition.committed_offset)
        return committed

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


async def commit_offsets(
    client: Client,
    group_id: str,
    offsets: Mapping[TopicPartition, Offset],
    committer: Membership = NO_MEMBER,
) -> None:
    """Commit offsets of a group; from outside only while it has no members."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=committer.generation,
        member_id=committer.member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp],
                        committed_metadata="",
                    )
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(offsets).items()
        ],
    )

    async def attempt() -> None:
        response = await client.send_to_coordinator(
            group_id, request, OffsetCommitResponse, version_max=_COMMIT_BY_NAME
        )
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, f"group {group_id}, {tp}")

    await client.retry(attempt, on=TRANSPORT_ERRORS)


async def delete_offsets(
    client: Client, group_id: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Refused]:
    """Delete committed offsets of these partitions; returns the errors by partition."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=tp.partition) for tp in wanted
                ],
            )
            for topic, wanted in by_topic(tps).items()
        ],
    )

    async def attempt() -> dict[TopicPartition, Refused]:
        response = await client.send_to_coordinator(group_id, request, OffsetDeleteResponse)
        check_group(response.error_code, group_id)
        refused = dict[TopicPartition, Refused]()
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                try:
                    check(partition.error_code, f"group {group_id}, {tp}")
                except Refused as problem:
                    refused[tp] = problem
        return refused

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


def _offset_fetch_request(
    group_id: str,
    topics: Mapping[str, list[TopicPartition]] | None,
    *,
    require_stable: bool = False,
) -> OffsetFetchRequest:
    """A request for all versions: those before 8 have one group only."""
    if topics is None:
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        return OffsetFetchRequest(
            group_id=group_id, topics=None, groups=[group], require_stable=require_stable
        )
    wanted = {topic: [tp.partition for tp in tps] for topic, tps in topics.items()}
    return OffsetFetchRequest(
        require_stable=require_stable,
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in wanted.items()
        ],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                topics=[
                    OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                    for topic, indexes in wanted.items()
                ],
            )
        ],
    )
