"""The broker that coordinates a key, seen from any broker of the cluster."""

from typing import Protocol

from ottla.cluster.image import ClusterImage
from ottla.cluster.values import PartitionImage
from ottla.errors import NotCoordinator
from ottla.model import BrokerId, TopicPartition


class Coordinates(Protocol):
    """A coordinator, as far as it says which keys are its own."""

    def partition_of(self, key: str) -> TopicPartition: ...

    def leads(self, tp: TopicPartition) -> bool: ...


def coordinated_elsewhere(
    here: Coordinates, key: str, image: ClusterImage, broker_id: BrokerId
) -> tuple[BrokerId, PartitionImage] | None:
    """The broker that coordinates a key, and the partition it leads; None if it is this one."""
    tp = here.partition_of(key)
    if here.leads(tp):
        return None
    partition = image.partition(tp)
    if partition is None or partition.leader is None:
        raise NotCoordinator(f"{tp} has no leader")
    if partition.leader == broker_id:  # it has not begun to lead
        raise NotCoordinator(f"{tp} is about to be led here")
    return partition.leader, partition
