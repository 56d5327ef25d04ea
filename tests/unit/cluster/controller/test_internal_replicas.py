"""Replicas of internal topics: how many at creation, and more when brokers come."""

from dataclasses import replace

import pytest

from fakes.cluster_images import after, alive, back, broker, cluster, create, gone, ids
from ottla.cluster.controller.internal_replicas import add_internal_replicas, internal_factor
from ottla.cluster.controller.leaders import IsrChange, alter_isrs
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import Revision
from ottla.config import BrokerConfig
from ottla.model import BrokerId, TopicPartition

OFFSETS = "__consumer_offsets"
CONFIG = BrokerConfig()


def offsets(image: ClusterImage) -> TopicImage:
    return image.topics[OFFSETS]


def with_offsets(
    image: ClusterImage, partitions: int, config: BrokerConfig = CONFIG
) -> ClusterImage:
    decision = create(image, OFFSETS, defaults=config, partition_count=partitions, is_internal=True)
    return after(image, decision)


def added_to(image: ClusterImage, config: BrokerConfig = CONFIG) -> list[int]:
    """The partitions that get a replica now."""
    changed = after(image, add_internal_replicas(image, config))
    return [
        index
        for index, (old, new) in enumerate(
            zip(offsets(image).partitions, offsets(changed).partitions, strict=True)
        )
        if old.replicas != new.replicas
    ]


def in_sync(image: ClusterImage) -> ClusterImage:
    """The image after all live replicas have caught up."""
    changes = []
    for index, one in enumerate(offsets(image).partitions):
        assert one.leader is not None
        isr = tuple(number for number in one.replicas if number in image.brokers)
        tp = TopicPartition(OFFSETS, index)
        changes.append(IsrChange(tp, isr, one.leader, one.leader_epoch, one.partition_epoch))
    return after(image, alter_isrs(image, changes, CONFIG))


def test_a_few_partitions_at_a_time_get_a_replica_on_each_broker_that_comes() -> None:
    image = with_offsets(cluster(1), 20)
    assert added_to(image) == [], "there is no other broker"
    image = back(back(image, 2), 3)
    rounds = 0
    while add_internal_replicas(image, CONFIG).changes:
        assert len(added_to(image)) <= 2
        image = after(image, add_internal_replicas(image, CONFIG))
        assert added_to(image) == [], "others wait until these are in sync"
        image = in_sync(image)
        rounds += 1
    assert rounds == 20 + 1, "two replicas for each of 20 partitions, and then a setting"
    assert all(sorted(one.isr) == [1, 2, 3] for one in offsets(image).partitions)
    assert offsets(image).config["min.insync.replicas"] == "2"


def test_an_added_replica_is_not_in_sync_and_changes_no_leader() -> None:
    image = back(with_offsets(cluster(1), 1), 2)
    before = offsets(image).partitions[0]
    image = after(image, add_internal_replicas(image, CONFIG))
    assert offsets(image).partitions[0] == replace(
        before,
        replicas=ids(1, 2),
        adding=ids(2),
        partition_epoch=before.partition_epoch + 1,
    )


def test_replicas_of_a_topic_are_spread_over_the_brokers_that_came() -> None:
    image = with_offsets(cluster(1), 9)
    for number in (2, 3, 4):
        image = back(image, number)
    two = BrokerConfig(offsets_topic_replication_factor=2)
    while add_internal_replicas(image, two).changes:
        image = in_sync(after(image, add_internal_replicas(image, two)))
    added = [one.replicas[1] for one in offsets(image).partitions]
    assert [added.count(BrokerId(number)) for number in (2, 3, 4)] == [3, 3, 3]
    assert "min.insync.replicas" not in offsets(image).config


def test_a_dead_replica_is_not_waited_for() -> None:
    image = gone(in_sync(with_offsets(cluster(1, 2), 1)), 2)
    assert added_to(image) == [], "one broker is alive, one replica is enough"
    three = BrokerConfig(offsets_topic_replication_factor=3)
    assert added_to(back(back(image, 3), 4), three) == [0]


def test_a_partition_without_a_leader_gets_no_replica() -> None:
    image = back(back(gone(with_offsets(cluster(1), 1), 1), 2), 3)
    config = BrokerConfig(offsets_topic_replication_factor=2)
    assert offsets(image).partitions[0].leader is None
    assert added_to(image, config) == []


def test_a_setting_of_all_brokers_counts_more_than_a_brokers_own() -> None:
    image = with_offsets(cluster(1, 2), 1, BrokerConfig(offsets_topic_replication_factor=1))
    image = replace(image, broker_config={"offsets.topic.replication.factor": "1"})
    assert added_to(image) == []
    image = replace(image, broker_config={"offsets.topic.replication.factor": "2"})
    assert added_to(image, BrokerConfig(offsets_topic_replication_factor=1)) == [0]


def test_who_set_how_many_must_be_in_sync_is_not_overruled() -> None:
    image = in_sync(
        with_offsets(cluster(1, 2, 3), 1, BrokerConfig.parse({"min.insync.replicas": "1"}))
    )
    assert len(offsets(image).partitions[0].replicas) == 3
    assert "min.insync.replicas" not in offsets(image).config
    assert add_internal_replicas(image, CONFIG).changes
    assert not add_internal_replicas(
        image, BrokerConfig.parse({"min.insync.replicas": "1"})
    ).changes
    dynamic = replace(image, broker_config={"min.insync.replicas": "1"})
    assert not add_internal_replicas(dynamic, CONFIG).changes


@pytest.mark.parametrize(
    ("machines", "factor"),
    [
        (("m",), 1),
        (("m", "m", "m"), 1),
        (("m", "n", "n"), 2),
        (("m", None, None), 3),
        (("a", "b", "c", "d"), 3),
    ],
)
def test_auto_counts_machines_and_not_processes(
    machines: tuple[str | None, ...], factor: int
) -> None:
    image = ClusterImage()
    for number, machine in enumerate(machines):
        changes = alive(replace(broker(number), machine=machine), number + 1)
        image = image.apply(changes, Revision(number + 1))
    assert internal_factor(image, OFFSETS, CONFIG) == factor
    assert len(create(image).result.partitions[0].replicas) == factor
    assert internal_factor(image, OFFSETS, BrokerConfig(offsets_topic_replication_factor=9)) == len(
        machines
    )
