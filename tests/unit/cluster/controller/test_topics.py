"""Decisions on topics: created, deleted, grown, adopted, and every refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fakes.cluster_images import CONFIG, after, cluster, create, gone, ids, orders_0, with_topic
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.topics import (
    FoundPartition,
    NewTopic,
    add_partitions,
    adopt_partition,
    create_topic,
    delete_topic,
    logs_removed,
    sweep,
)
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import Revision
from ottla.cluster.values import Change, Making, PartitionImage, Tombstone, making_key
from ottla.config import BrokerConfig
from ottla.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.model import (
    NO_UUID,
    BrokerId,
    LeaderEpoch,
    TopicPartition,
    Uuid,
    format_uuid,
)

# Creating


def test_a_topic_gets_what_it_asks_for() -> None:
    image = cluster(1, 2, 3)
    decision = create(
        image, partition_count=3, replication_factor=2, config={"retention.ms": "1000"}
    )
    topic = after(image, decision).topics["orders"]
    assert topic == decision.result
    assert topic.config == {"retention.ms": "1000"}
    assert [partition.replicas for partition in topic.partitions] == [(1, 2), (2, 3), (3, 1)]
    assert topic.partitions[0] == PartitionImage(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        replicas=ids(1, 2),
        isr=ids(1, 2),
        partition_epoch=0,
        is_new=True,
    )


def test_minus_one_asks_for_the_brokers_defaults() -> None:
    defaults = BrokerConfig(partitions_default=4, default_replication_factor=2)
    topic = create(cluster(1, 2), defaults=defaults).result
    assert len(topic.partitions) == 4
    assert all(len(partition.replicas) == 2 for partition in topic.partitions)


def test_with_three_replicas_two_must_be_in_sync_unless_the_user_said_otherwise() -> None:
    three = cluster(1, 2, 3)
    assert create(three).result.config == {"min.insync.replicas": "2"}
    assert create(three, replication_factor=3).result.config == {"min.insync.replicas": "2"}
    assert create(three, replication_factor=2).result.config == {}
    given = {"min.insync.replicas": "3"}
    assert create(three, config=given).result.config == given
    for number in ("1", "3"):
        defaults = BrokerConfig.parse({"min.insync.replicas": number})
        assert create(three, defaults=defaults).result.config == {}


def test_a_topic_can_be_found_by_its_id_until_it_is_deleted() -> None:
    image = cluster(1)
    created = create(image)
    image = after(image, created)
    assert image.topic_by_id(created.result.id) == created.result
    deleted = delete_topic(image, "orders", CONFIG)
    assert deleted.result == created.result
    image = after(image, deleted)
    assert image.topic_by_id(created.result.id) is None
    assert image.topics == {}


def test_ids_that_are_zero_taken_or_look_like_an_option_are_drawn_again() -> None:
    image = after(cluster(1), create(cluster(1), new_id=lambda: Uuid(b"\x01" * 16)))
    drawn = iter([NO_UUID, Uuid(b"\x01" * 16), Uuid(b"\xf8" * 16), Uuid(b"\x02" * 16)])
    assert create(image, "other", new_id=lambda: next(drawn)).result.id == b"\x02" * 16


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a" * 250])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic, match="choose another name"):
        create(cluster(1), name)


def test_a_name_that_exists_is_refused() -> None:
    with pytest.raises(TopicAlreadyExists, match="'orders' exists already"):
        create(with_topic(cluster(1), (1,)))


@pytest.mark.parametrize(("old", "new"), [("a.b", "a_b"), ("a_b", "a.b"), ("_._", "._.")])
def test_a_name_that_differs_only_in_dots_and_underscores_is_refused(old: str, new: str) -> None:
    image = after(cluster(1), create(cluster(1), old))
    with pytest.raises(InvalidTopic, match=r"only in '\.' and '_'"):
        create(image, new)
    assert create(image, new + "x").result.name == new + "x"


@pytest.mark.parametrize("partition_count", [0, -2])
def test_no_partitions_are_refused(partition_count: int) -> None:
    with pytest.raises(InvalidPartitions, match="1 or more partitions"):
        create(cluster(1), partition_count=partition_count)


@pytest.mark.parametrize("factor", [0, -2])
def test_no_replicas_are_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match="1 or more replicas"):
        create(cluster(1), replication_factor=factor)


@pytest.mark.parametrize(("brokers", "factor"), [((), 1), ((1, 2), 3)])
def test_more_replicas_than_live_brokers_are_refused(brokers: tuple[int, ...], factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match="start more brokers, or request fewer"):
        create(cluster(*brokers), replication_factor=factor)


def test_more_partitions_than_the_limit_are_refused_before_they_cost_anything() -> None:
    defaults = BrokerConfig(partitions_max=10)
    image = after(cluster(1), create(cluster(1), defaults=defaults, partition_count=9))
    assert create(image, "last", defaults=defaults).result.partitions
    with pytest.raises(PolicyViolation, match=r"max.partitions allows 10"):
        create(image, "more", defaults=defaults, partition_count=2)
    with pytest.raises(PolicyViolation, match="raise the limit"):
        create(image, "more", defaults=defaults, partition_count=2**31 - 1)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"no.such.setting": "1"}, "unknown topic setting"),
        ({"retention.ms": None}, "no value given for retention.ms"),
    ],
)
def test_a_bad_setting_is_refused(config: Mapping[str, str | None], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        create(cluster(1), config=config)


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        ({1: ids(1)}, "must be 0, 1, 2 and so on"),
        ({0: ids(1), 2: ids(2)}, "must be 0, 1, 2 and so on"),
        ({0: ()}, "at least one replica"),
        ({0: ids(1, 1)}, "names a broker twice"),
        ({0: ids(1, 9)}, r"brokers \[9\] are not alive"),
        ({0: ids(1, 2), 1: ids(1)}, "equally many replicas"),
    ],
)
def test_a_bad_assignment_is_refused(
    assignment: Mapping[int, Sequence[BrokerId]], text: str
) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=text):
        create(cluster(1, 2), assignment=assignment)


@pytest.mark.parametrize("numbers", [{"partition_count": 1}, {"replication_factor": 1}])
def test_an_assignment_beside_numbers_is_refused(numbers: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="either the replicas of each partition or"):
        create(cluster(1), assignment={0: ids(1)}, **numbers)


def test_an_assignment_counts_towards_the_partition_limit() -> None:
    with pytest.raises(PolicyViolation):
        create(
            cluster(1),
            defaults=BrokerConfig(partitions_max=1),
            assignment={0: ids(1), 1: ids(1)},
        )


# Deleting and growing


def test_deleting_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="unknown topic 'orders'"):
        delete_topic(cluster(1), "orders", CONFIG)


def test_deleting_is_refused_where_it_is_switched_off() -> None:
    with pytest.raises(TopicDeletionDisabled, match=r"set delete.topic.enable = true"):
        delete_topic(with_topic(cluster(1), (1,)), "orders", BrokerConfig(delete_topic=False))


def test_added_partitions_follow_the_old_ones_and_leave_them_alone() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2))
    grown = after(image, add_partitions(image, "orders", 3, CONFIG, start=0)).topics["orders"]
    assert grown.partitions[0] is orders_0(image)
    assert [partition.replicas for partition in grown.partitions[1:]] == [(2, 3), (3, 1)]


@pytest.mark.parametrize("total", [-1, 0, 1, 2])
def test_partitions_cannot_be_removed(total: int) -> None:
    image = with_topic(cluster(1), (1,), (1,))
    with pytest.raises(InvalidPartitions, match=f"request 3 or more, not {total}"):
        add_partitions(image, "orders", total, CONFIG, start=0)


def test_adding_partitions_to_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition):
        add_partitions(cluster(1), "orders", 2, CONFIG, start=0)


def test_adding_partitions_needs_brokers_for_all_replicas() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    image = gone(image, 2)
    with pytest.raises(InvalidReplicationFactor, match="2 replicas need as many live brokers"):
        add_partitions(image, "orders", 2, CONFIG, start=0)


def test_added_partitions_count_towards_the_limit() -> None:
    image = with_topic(cluster(1), (1,))
    with pytest.raises(PolicyViolation, match=r"max.partitions allows 100000"):
        add_partitions(image, "orders", 2**31 - 1, CONFIG, start=0)


def test_added_partitions_can_be_assigned_by_hand() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    grown = add_partitions(image, "orders", 2, CONFIG, start=0, assignments=[ids(2, 1)]).result
    assert grown.partitions[1].replicas == (2, 1)


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        ([], "1 assignments are needed, not 0"),
        ([ids(1, 2), ids(2, 1)], "1 assignments are needed, not 2"),
        ([ids(1)], "equally many replicas"),
        ([ids(1, 3)], "not alive"),
    ],
)
def test_bad_assignments_of_added_partitions_are_refused(
    assignments: Sequence[Sequence[BrokerId]], text: str
) -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    with pytest.raises(InvalidReplicaAssignment, match=text):
        add_partitions(image, "orders", 2, CONFIG, start=0, assignments=assignments)


# Tombstones, and logs that were lost


def test_a_deleted_topic_leaves_a_tombstone_in_the_same_commit() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2), (2, 3))
    topic = image.topics["orders"]
    decision = delete_topic(image, "orders", CONFIG)
    assert [change.key for change in decision.changes] == [
        "topics/orders",
        f"deleted/{format_uuid(topic.id)}",
        f"partitions/{format_uuid(topic.id)}/0",
        f"partitions/{format_uuid(topic.id)}/1",
    ]
    gone = after(image, decision)
    assert not gone.topics
    assert not gone.detached
    assert gone.tombstones == {topic.id: Tombstone(topic.id, "orders", 2, ids(1, 2, 3))}


def test_many_partitions_of_a_deleted_topic_are_swept_later() -> None:
    image = with_topic(cluster(1), *[(1,)] * 50)
    topic_id = image.topics["orders"].id
    assert sweep(image).changes == ()
    image = after(image, delete_topic(image, "orders", CONFIG))
    assert len(image.detached[topic_id]) == 50
    image = after(image, sweep(image))
    assert not image.detached
    assert sweep(image).changes == ()


def test_a_creation_is_swept_when_it_is_given_up() -> None:
    image = cluster(1)
    decision = create(image, assignment={index: ids(1) for index in range(3)})
    topic_id = decision.result.id
    making = Change(making_key(topic_id), Making(topic_id, "orders", 3))
    image = image.apply([making, *decision.changes[:2]], Revision(2))
    assert sweep(image).changes == ()
    changes = sweep(image, [topic_id]).changes
    assert changes[0].key == making.key, "so that the creation cannot go on"
    image = image.apply(changes, Revision(3))
    assert not image.detached
    assert not image.making


def test_a_creation_goes_on_with_the_partitions_that_are_missing() -> None:
    image = cluster(1)
    wanted = NewTopic(name="orders", partition_count=5)

    def decide(image: ClusterImage) -> Decision[TopicImage]:
        return create_topic(image, wanted, CONFIG, topic_id=Uuid(bytes([1] * 16)), start=0)

    first = decide(image)
    making = Change(making_key(first.result.id), Making(first.result.id, "orders", 5))
    half = image.apply([making, *first.changes[:3]], Revision(2))
    rest = decide(half)
    assert rest.result == first.result
    assert [change.key for change in rest.changes] == [
        *(change.key for change in first.changes[3:]),
        making.key,
    ]
    whole = after(half, rest)
    assert whole.topics["orders"] == first.result
    assert not whole.detached
    assert not whole.making


def test_the_last_broker_without_logs_takes_the_tombstone_away() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    topic_id = image.topics["orders"].id
    image = after(image, delete_topic(image, "orders", CONFIG))
    image = after(image, logs_removed(image, BrokerId(1), [topic_id]))
    assert image.tombstones[topic_id].brokers == ids(2)
    assert logs_removed(image, BrokerId(1), [topic_id]).changes == ()
    image = after(image, logs_removed(image, BrokerId(2), [topic_id]))
    assert image.tombstones == {}
    left = {"brokers/1", "brokers/2", "ready/1", "ready/2", "catalog"}
    assert image.mod_revisions.keys() == left


def test_the_id_of_a_deleted_topic_is_not_given_out_again() -> None:
    image = with_topic(cluster(1), (1,))
    topic_id = image.topics["orders"].id
    image = after(image, delete_topic(image, "orders", CONFIG))
    drawn = iter([topic_id, Uuid(bytes([9] * 16))])
    assert create(image, new_id=partial(next, drawn)).result.id == bytes([9] * 16)


def found(name: str = "orders", partition: int = 1, **changes: Any) -> FoundPartition:
    base = FoundPartition(
        tp=TopicPartition(name, partition),
        topic_id=Uuid(bytes([7] * 16)),
        broker=BrokerId(1),
        leader_epoch=LeaderEpoch(5),
        partition_count=3,
        config={"retention.ms": "-1"},
        is_internal=False,
    )
    return replace(base, **changes)


def test_a_lost_topic_is_made_again_with_its_id_and_all_its_partitions() -> None:
    topic = adopt_partition(cluster(1), found()).result
    assert (topic.id, len(topic.partitions), topic.config) == (
        bytes([7] * 16),
        3,
        {"retention.ms": "-1"},
    )
    assert [partition.leader_epoch for partition in topic.partitions] == [0, 5, 0]


def test_an_adopted_partition_grows_its_topic_and_takes_nothing_back() -> None:
    image = with_topic(cluster(1), (1,))
    topic_id = image.topics["orders"].id
    grown = after(image, adopt_partition(image, found(topic_id=topic_id, partition=2)))
    assert len(grown.topics["orders"].partitions) == 3
    assert grown.topics["orders"].config == {}
    lower = found(topic_id=topic_id, partition=2, leader_epoch=LeaderEpoch(1))
    again = after(grown, adopt_partition(grown, lower))
    assert again.topics["orders"].partitions[2].leader_epoch == 5


def test_a_log_that_does_not_go_with_the_cluster_is_not_adopted() -> None:
    image = with_topic(cluster(1), (1,))
    topic_id = image.topics["orders"].id
    with pytest.raises(TopicAlreadyExists):
        adopt_partition(image, found())
    with pytest.raises(InvalidRequest, match="belongs to topic 'orders'"):
        adopt_partition(image, found("other", topic_id=topic_id))
    gone = after(image, delete_topic(image, "orders", CONFIG))
    with pytest.raises(InvalidRequest, match="was deleted"):
        adopt_partition(gone, found(topic_id=topic_id))
