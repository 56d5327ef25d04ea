"""Cluster images for tests of decisions: brokers, topics, and the image after a decision."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from ottla.cluster.controller.brokers import note_ready, register_broker
from ottla.cluster.controller.decision import Decision, topic_changes
from ottla.cluster.controller.leaders import settle_leaders
from ottla.cluster.controller.topics import (
    NewTopic,
    create_topic,
    new_topic_id,
)
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import Revision
from ottla.cluster.values import (
    CLIENT_LISTENER,
    BrokerImage,
    Change,
    PartitionImage,
    Ready,
    broker_key,
    ready_key,
)
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


def broker(
    broker_id: int, port: int | None = None, *, rack: str | None = None, host: str = "localhost"
) -> BrokerImage:
    endpoint = Endpoint(host, 9000 + broker_id if port is None else port)
    return BrokerImage(BrokerId(broker_id), {CLIENT_LISTENER: endpoint}, rack)


def alive(registered: BrokerImage, revision: int) -> list[Change]:
    """A broker registers, and is ready, both in the commit of this revision."""
    ready = Ready(registered.id, revision)
    return [
        Change(broker_key(registered.id), registered),
        Change(ready_key(registered.id), ready),
    ]


def put_topic(topic: TopicImage) -> list[Change]:
    """All keys of a topic."""
    return list(topic_changes(ClusterImage(), topic))


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def cluster(*brokers: int) -> ClusterImage:
    changes = [change for number in brokers for change in alive(broker(number), 1)]
    return ClusterImage().apply(changes, Revision(1))


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
    topic_id = new_topic_id(image, new_id or partial(next, fresh))
    return create_topic(image, topic, defaults, topic_id=topic_id, start=0)


def gone(image: ClusterImage, *brokers: int) -> ClusterImage:
    """The image after the leases of these brokers have ended, each followed by elections."""
    for number in brokers:
        ended = [Change(key(BrokerId(number)), None) for key in (broker_key, ready_key)]
        image = image.apply(ended, Revision(image.revision + 1))
        image = after(image, settle_leaders(image, CONFIG))
    return image


def back(image: ClusterImage, number: int) -> ClusterImage:
    """The image after a broker has started, in all its steps."""
    image = after(image, register_broker(image, broker(number)))
    epoch = int(image.revision)
    image = after(image, settle_leaders(image, CONFIG))
    image = after(image, note_ready(image, BrokerId(number), epoch))
    return after(image, settle_leaders(image, CONFIG))


def with_topic(image: ClusterImage, *assignments: tuple[int, ...], **wanted: Any) -> ClusterImage:
    """The cluster with a topic `orders` whose partitions have these replicas."""
    assignment = {index: ids(*replicas) for index, replicas in enumerate(assignments)}
    return after(image, create(image, assignment=assignment, **wanted))


def orders_0(image: ClusterImage) -> PartitionImage:
    return image.topics["orders"].partitions[0]
