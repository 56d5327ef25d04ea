"""Cluster images for tests of decisions: brokers, topics, and the image after a decision."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import (
    NewTopic,
    create_topic,
)
from ottla.cluster.image import (
    BrokerImage,
    Change,
    ClusterImage,
    PartitionImage,
    TopicImage,
    broker_key,
)
from ottla.cluster.store import Revision
from ottla.config import BrokerConfig
from ottla.model import (
    BrokerId,
    Endpoint,
    TopicPartition,
    Uuid,
)

CONFIG = BrokerConfig()
ORDERS_0 = TopicPartition("orders", 0)


def numbered_ids() -> Callable[[], Uuid]:
    numbers = count(1)
    return lambda: Uuid(next(numbers).to_bytes(16, "big"))


def broker(broker_id: int) -> BrokerImage:
    return BrokerImage(BrokerId(broker_id), Endpoint("localhost", 9000 + broker_id))


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def cluster(*brokers: int) -> ClusterImage:
    return ClusterImage().apply(
        [Change(broker_key(BrokerId(number)), broker(number)) for number in brokers], Revision(1)
    )


def after(image: ClusterImage, decision: Decision[Any]) -> ClusterImage:
    return image.apply(decision.changes, Revision(image.revision + 1))


def create(
    image: ClusterImage,
    name: str = "orders",
    *,
    defaults: BrokerConfig = CONFIG,
    new_id: Callable[[], Uuid] | None = None,
    **wanted: Any,
) -> Decision[TopicImage]:
    number = len(image.topics) * 1000
    fresh = (Uuid((number + step).to_bytes(16, "big")) for step in count(1))
    topic = NewTopic(name=name, **wanted)
    return create_topic(image, topic, defaults, new_id=new_id or partial(next, fresh), start=0)


def with_topic(image: ClusterImage, *assignments: tuple[int, ...], **wanted: Any) -> ClusterImage:
    """The cluster with a topic `orders` whose partitions have these replicas."""
    assignment = {index: ids(*replicas) for index, replicas in enumerate(assignments)}
    return after(image, create(image, assignment=assignment, **wanted))


def orders_0(image: ClusterImage) -> PartitionImage:
    return image.topics["orders"].partitions[0]
