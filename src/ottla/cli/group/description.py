"""The data of `ottla group describe`, collected from the brokers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ottla.client.client import Client
from ottla.client.cluster_view import ClusterView
from ottla.client.group_offsets import committed_offsets
from ottla.client.groups import SHARE_TYPE, GroupDescription, MemberDescription, describe_group
from ottla.client.partitions import by_topic, list_offsets
from ottla.client.share_offsets import describe_share_offsets
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """The committed offset of a group in a partition, and the partition's owner.

    None is for a missing offset or owner, or an end that is unknown without a leader. Of a share
    group the offset is that below which everything is finished; what is finished behind it is not
    in the lag that the broker reports.
    """

    tp: TopicPartition
    committed_offset: Offset | None
    end_offset: Offset | None
    owner: MemberDescription | None
    reported_lag: int | None = None

    @property
    def lag(self) -> int | None:
        if self.reported_lag is not None:
            return self.reported_lag
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "committed_offset": self.committed_offset,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "member_id": self.owner and self.owner.member_id,
            "client_id": self.owner and self.owner.client_id,
            "host": self.owner and self.owner.host,
        }


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group, and every partition that it has committed or been assigned, in order."""

    group: GroupDescription
    partitions: tuple[PartitionProgress, ...]

    @property
    def lag(self) -> int:
        """The sum over all partitions whose lag is known."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def unknown_count(self) -> int:
        """The number of partitions with unknown lag: no committed offset, or no leader."""
        return sum(partition.lag is None for partition in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        group = self.group
        return {
            "group": group.group_id,
            "type": group.type,
            "protocol": group.protocol_type,
            "state": group.state,
            "assignor": group.assignor,
            "epoch": group.epoch,
            "coordinator": group.coordinator,
            "lag": self.lag,
            "members": [_member_json(member) for member in group.members],
            "partitions": [partition.as_json() for partition in self.partitions],
        }


async def describe_progress(client: Client, view: ClusterView, group_id: str) -> GroupProgress:
    """The progress of one group; `view` has all topics."""
    group = await describe_group(client, group_id)
    lags: dict[TopicPartition, int | None] = {}
    committed: dict[TopicPartition, Offset] = {}
    if group.type == SHARE_TYPE:
        for tp, offset in (await describe_share_offsets(client, group_id)).items():
            lags[tp] = offset.lag
            if offset.start is not None:
                committed[tp] = offset.start
    else:
        committed = await committed_offsets(client, group_id)
    owners = {tp: member for member in group.members for tp in member.partitions or ()}
    tps = sorted(committed.keys() | owners.keys() | lags.keys())
    led = [tp for tp in tps if view.leader_of(tp) is not None]
    ends = await list_offsets(client, dict.fromkeys(led, LATEST))
    return GroupProgress(
        group,
        tuple(
            PartitionProgress(
                tp=tp,
                committed_offset=committed.get(tp),
                end_offset=ends.get(tp),
                owner=owners.get(tp),
                reported_lag=lags.get(tp),
            )
            for tp in tps
        ),
    )


def format_partitions(tps: Sequence[TopicPartition]) -> str:
    """Partitions in the notation of `--topic`: orders:0,1 payments:2."""
    return " ".join(
        f"{topic}:{','.join(str(tp.partition) for tp in some)}"
        for topic, some in by_topic(sorted(tps)).items()
    )


def _member_json(member: MemberDescription) -> dict[str, Any]:
    fields = asdict(member)
    partitions = member.partitions
    fields["partitions"] = (
        None
        if partitions is None
        else [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]
    )
    return fields
