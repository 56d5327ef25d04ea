"""The health of a cluster, from what its brokers say: brokers, partitions, moves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ottla.client.client import Client
from ottla.client.cluster_description import ClusterDescription, describe_cluster
from ottla.client.cluster_view import ClusterView, PartitionView
from ottla.client.placement import Move, list_moves
from ottla.model import BrokerId, TopicPartition


class Health(StrEnum):
    """The state of a cluster as a whole."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # a broker is dead, or a replica is not in sync
    OFFLINE = "offline"  # a partition has no leader


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """A cluster with what is wrong in it, and what is being changed."""

    id: str
    controller: BrokerId | None
    alive: tuple[BrokerId, ...]
    dead: tuple[BrokerId, ...]
    draining: tuple[BrokerId, ...]
    partition_count: int
    offline: tuple[TopicPartition, ...]
    under_replicated: tuple[TopicPartition, ...]
    moving: tuple[TopicPartition, ...]
    not_preferred: tuple[TopicPartition, ...]  # led by another replica than the first

    @property
    def health(self) -> Health:
        if self.offline:
            return Health.OFFLINE
        return Health.DEGRADED if self.dead or self.under_replicated else Health.HEALTHY

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        names = ("offline", "under_replicated", "moving", "not_preferred")
        return {
            "health": str(self.health),
            "id": self.id,
            "controller": self.controller,
            "alive": self.alive,
            "dead": self.dead,
            "draining": self.draining,
            "partitions": self.partition_count,
            **{name: [str(tp) for tp in getattr(self, name)] for name in names},
        }


async def cluster_status(client: Client) -> ClusterStatus:
    """The status of the cluster now."""
    described = await describe_cluster(client, has_dead=True)
    return judge(described, await client.describe(None), await list_moves(client))


def judge(
    described: ClusterDescription, view: ClusterView, moves: Mapping[TopicPartition, Move]
) -> ClusterStatus:
    """The status of a cluster that is described so."""
    found = dict(_partitions(view))
    return ClusterStatus(
        id=described.id,
        controller=described.controller,
        alive=tuple(one.id for one in described.brokers if one.is_alive),
        dead=tuple(one.id for one in described.brokers if not one.is_alive),
        draining=tuple(one.id for one in described.brokers if one.is_draining),
        partition_count=len(found),
        offline=tuple(tp for tp, one in found.items() if one.leader is None),
        under_replicated=tuple(tp for tp, one in found.items() if _lacks(one, moves.get(tp))),
        moving=tuple(sorted(moves)),
        not_preferred=tuple(
            tp
            for tp, one in found.items()
            if one.leader is not None and one.replicas and one.leader != one.replicas[0]
        ),
    )


def _partitions(view: ClusterView) -> Iterator[tuple[TopicPartition, PartitionView]]:
    for name in sorted(view.topics):
        for partition in view.topics[name].partitions:
            yield TopicPartition(name, partition.index), partition


def _lacks(partition: PartitionView, move: Move | None) -> bool:
    """True if a replica is not in sync that is not just being added."""
    adding = () if move is None else move.adding
    return any(one not in partition.isr and one not in adding for one in partition.replicas)
