"""Decisions on moves, drained brokers, removed brokers and requested elections."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes.cluster_images import (
    CONFIG,
    ORDERS_0,
    after,
    back,
    broker,
    cluster,
    create,
    gone,
    ids,
    orders_0,
    with_topic,
)
from ottla.cluster.commits import compares
from ottla.cluster.controller.brokers import note_ready, register_broker
from ottla.cluster.controller.configs import replace_broker_config
from ottla.cluster.controller.leaders import IsrChange, alter_isr, isr_min_of, replication_rules
from ottla.cluster.controller.reassignment import (
    begin_move,
    cancel_move,
    drain,
    elect_preferred,
    elect_uncleanly,
    moving_partitions,
    remove_broker,
    set_draining,
)
from ottla.cluster.controller.topics import add_partitions, delete_topic
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import PartitionImage
from ottla.errors import (
    ApiError,
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, LeaderEpoch, TopicPartition


def started(*brokers: int) -> ClusterImage:
    """A cluster whose brokers have all become ready, so that they are members."""
    image = cluster()
    for number in brokers:
        image = back(image, number)
    return image


def moved(image: ClusterImage, *target: int, tp: TopicPartition = ORDERS_0) -> ClusterImage:
    return after(image, begin_move(image, tp, ids(*target), CONFIG))


def cancelled(image: ClusterImage) -> ClusterImage:
    return after(image, cancel_move(image, ORDERS_0, CONFIG))


def in_sync(image: ClusterImage, *isr: int, tp: TopicPartition = ORDERS_0) -> ClusterImage:
    """The leader commits another ISR."""
    partition = image.partition(tp)
    assert partition is not None
    assert partition.leader is not None
    change = IsrChange(
        tp, ids(*isr), partition.leader, partition.leader_epoch, partition.partition_epoch
    )
    rules = replication_rules(image.broker_config, CONFIG)
    return after(image, alter_isr(image, change, rules))


def drained(image: ClusterImage, number: int) -> ClusterImage:
    return after(image, set_draining(image, BrokerId(number), is_draining=True))


def members(partition: PartitionImage) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return partition.replicas, partition.adding, partition.removing


# Moves


def test_a_move_adds_the_target_and_drops_the_others_when_all_of_it_is_in_sync() -> None:
    image = moved(with_topic(started(1, 2, 3, 4), (1, 2)), 3, 4)
    assert members(orders_0(image)) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert (orders_0(image).leader, orders_0(image).isr) == (1, (1, 2))
    assert orders_0(image).leader_epoch == 0, "nobody has to ask anew for its leader"
    image = in_sync(image, 1, 2, 3)
    assert orders_0(image).is_moving
    image = in_sync(image, 1, 2, 3, 4)
    assert orders_0(image) == PartitionImage(
        leader=BrokerId(3),
        leader_epoch=LeaderEpoch(1),
        replicas=ids(3, 4),
        isr=ids(3, 4),
        partition_epoch=3,
    )


def test_a_leader_that_stays_begins_a_new_epoch_when_replicas_are_dropped() -> None:
    image = in_sync(moved(with_topic(started(1, 2, 3), (1, 2)), 1, 3), 1, 2, 3)
    partition = orders_0(image)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1, 3), 1)


def test_another_order_of_the_same_replicas_is_done_at_once() -> None:
    image = moved(with_topic(started(1, 2), (1, 2)), 2, 1)
    partition = orders_0(image)
    assert members(partition) == ((2, 1), (), ())
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)
    assert begin_move(image, ORDERS_0, ids(2, 1), CONFIG).changes == ()


def test_fewer_replicas_are_there_at_once_if_those_that_stay_are_in_sync() -> None:
    image = moved(with_topic(started(1, 2, 3), (1, 2, 3)), 2)
    partition = orders_0(image)
    assert members(partition) == ((2,), (), ())
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2,), 1)


def test_a_target_that_is_not_alive_keeps_the_move_from_ending() -> None:
    image = gone(with_topic(started(1, 2, 3, 4), (1, 2)), 2)
    image = in_sync(moved(image, 2, 3), 1, 3)
    assert members(orders_0(image)) == ((2, 3, 1), (3,), (1,))
    image = in_sync(back(image, 2), 1, 2, 3)
    assert members(orders_0(image)) == ((2, 3), (), ())


def test_a_move_can_get_another_target_on_the_way_and_forgets_nothing() -> None:
    image = in_sync(moved(with_topic(started(1, 2, 3, 4), (1,)), 2), 1)
    image = moved(image, 3)
    assert members(orders_0(image)) == ((3, 2, 1), (3, 2), (2, 1))
    assert orders_0(image).original == (1,)
    assert members(orders_0(cancelled(image))) == ((1,), (), ())
    image = in_sync(image, 1, 3)
    assert members(orders_0(image)) == ((3,), (), ())


def test_a_move_that_is_cancelled_keeps_what_was_there_and_elects_if_needed() -> None:
    image = in_sync(moved(with_topic(started(1, 2, 3, 4), (1, 2)), 3, 4), 1, 2, 3)
    image = cancelled(gone(image, 1))
    partition = orders_0(image)
    assert members(partition) == ((1, 2), (), ())
    assert (partition.leader, partition.isr) == (2, (2,))
    led_by_new = after(moved_led_by(3), cancel_move(moved_led_by(3), ORDERS_0, CONFIG))
    assert (orders_0(led_by_new).leader, orders_0(led_by_new).isr) == (2, (2,))


def moved_led_by(leader: int) -> ClusterImage:
    """A move from 1 and 2 to 3 and 4 which `leader` leads, because 1 has died."""
    image = in_sync(moved(with_topic(started(1, 2, 3, 4), (1, 2)), 3, 4), 1, 2, 3)
    image = gone(image, 1)
    assert orders_0(image).leader == leader
    return image


def test_a_move_cannot_be_cancelled_while_only_new_replicas_are_in_sync() -> None:
    image = in_sync(moved(with_topic(started(1, 2, 3), (1,)), 2, 3), 1, 2)
    image = gone(image, 1)
    assert orders_0(image).isr == (2,)
    with pytest.raises(InvalidReplicaAssignment, match=r"none of the replicas \[1\]"):
        cancel_move(image, ORDERS_0, CONFIG)


def test_without_a_move_there_is_nothing_to_cancel() -> None:
    image = with_topic(started(1, 2), (1, 2))
    with pytest.raises(NoReassignmentInProgress):
        cancel_move(image, ORDERS_0, CONFIG)
    with pytest.raises(UnknownTopicOrPartition):
        cancel_move(image, TopicPartition("orders", 1), CONFIG)


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ((), InvalidReplicaAssignment, "at least one replica"),
        ((1, 1), InvalidReplicaAssignment, "named twice"),
        ((1, 7), InvalidReplicaAssignment, "there is no broker 7"),
        ((1, 3), InvalidReplicaAssignment, "broker 3 is not alive"),
        ((1, 4), InvalidReplicaAssignment, "broker 4 is being drained"),
        ((1,), InvalidReplicationFactor, "2 replicas"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(
    target: tuple[int, ...], error: type[ApiError], text: str
) -> None:
    image = drained(gone(with_topic(started(1, 2, 3, 4), (1, 2)), 3), 4)
    with pytest.raises(error, match=text):
        begin_move(image, ORDERS_0, ids(*target), CONFIG, may_resize=False)


def test_a_replica_that_is_dead_may_stay() -> None:
    image = moved(gone(with_topic(started(1, 2, 3), (1, 2)), 2), 2, 3)
    assert orders_0(image).target == (2, 3)


@pytest.mark.parametrize(
    ("before", "target", "isr_min"),
    [((1,), (1, 3), 1), ((1, 2, 3), (2,), 1), ((1, 2, 3), (2, 3), 2)],
)
def test_while_replicas_are_added_or_removed_the_smaller_number_has_to_be_in_sync(
    before: tuple[int, ...], target: tuple[int, ...], isr_min: int
) -> None:
    image = with_topic(started(1, 2, 3), before, config={"min.insync.replicas": "2"})
    rules = replication_rules(image.broker_config, CONFIG)
    image = moved(gone(image, 2), *target)
    assert orders_0(image).is_moving
    assert isr_min_of(rules(image.topics["orders"]), orders_0(image)) == isr_min


def test_the_commit_of_a_move_compares_the_registrations_of_those_that_are_added() -> None:
    image = with_topic(started(1, 2, 3), (1,))
    decision = begin_move(image, ORDERS_0, ids(3), CONFIG)
    compared = {one.key for one in compares(image, decision.changes)}
    assert {"brokers/1", "brokers/3"} <= compared
    assert "brokers/2" not in compared


def test_a_topic_that_moves_grows_by_partitions_with_as_many_replicas_as_it_will_have() -> None:
    image = moved(with_topic(started(1, 2, 3, 4), (1, 2)), 3, 4)
    grown = after(image, add_partitions(image, "orders", 2, CONFIG, start=0))
    assert len(grown.topics["orders"].partitions[1].replicas) == 2


# Drained brokers


def test_a_drained_broker_stays_drained_when_it_starts_anew() -> None:
    image = back(drained(started(1, 2), 2), 2)
    assert image.draining == {2}
    image = after(image, set_draining(image, BrokerId(2), is_draining=False))
    assert not image.draining


def test_partitions_move_off_a_drained_broker_a_few_at_a_time() -> None:
    image = with_topic(started(1, 2, 3, 4), *[(1, 2)] * 6)
    image = drained(image, 2)
    few = replace(CONFIG, reassignment_concurrent_max=2)
    image = after(image, drain(image, few))
    moving = dict(moving_partitions(image))
    assert sorted(tp.partition for tp in moving) == [0, 1]
    assert {one.target for one in moving.values()} == {(1, 3), (1, 4)}
    assert drain(image, few).changes == (), "until one of them is done"
    target = image.topics["orders"].partitions[0].target[1]
    image = in_sync(image, 1, 2, target)
    image = after(image, drain(image, few))
    assert sorted(tp.partition for tp, _ in moving_partitions(image)) == [1, 2]


def test_the_limit_can_be_changed_for_the_cluster() -> None:
    image = drained(with_topic(started(1, 2, 3), *[(1, 2)] * 4), 2)
    setting = {"reassignment.concurrent.max": "3"}
    image = after(image, replace_broker_config(image, setting, CONFIG))
    assert len(drain(image, CONFIG).changes) == 3


def test_a_dead_broker_can_be_drained() -> None:
    image = drained(gone(with_topic(started(1, 2, 3), (1, 2)), 2), 2)
    image = in_sync(after(image, drain(image, CONFIG)), 1, 3)
    assert members(orders_0(image)) == ((1, 3), (), ())


def test_a_move_to_a_broker_that_is_drained_meanwhile_gets_another_target() -> None:
    image = moved(with_topic(started(1, 2, 3), (1,)), 2)
    image = drained(gone(image, 2), 2)
    image = after(image, drain(image, replace(CONFIG, reassignment_concurrent_max=1)))
    assert orders_0(image).target == (3,)


def test_replicas_are_moved_to_other_racks_and_machines() -> None:
    image = started()
    places = {1: ("a", "m1"), 2: ("a", "m2"), 3: ("b", "m3"), 4: ("b", "m3"), 5: ("b", "m4")}
    for number, (rack, machine) in places.items():
        placed = replace(broker(number, rack=rack), machine=machine)
        image = after(image, register_broker(image, placed))
        image = after(image, note_ready(image, BrokerId(number), int(image.revision)))
    image = drained(with_topic(image, (1, 3), (4, 5)), 3)
    image = after(image, drain(image, CONFIG))
    assert orders_0(image).target == (1, 4), "in the other rack, on the machine with fewer a broker"


def test_a_broker_whose_replicas_have_nowhere_to_go_is_not_drained() -> None:
    image = with_topic(started(1, 2, 3), (1, 2))
    image = drained(image, 3)
    with pytest.raises(PolicyViolation, match="too few brokers for orders-0: 1 for"):
        set_draining(image, BrokerId(2), is_draining=True)
    with pytest.raises(BrokerIdNotRegistered, match="there is no broker 9"):
        set_draining(image, BrokerId(9), is_draining=True)


def test_new_topics_are_placed_on_brokers_that_stay_if_there_are_enough() -> None:
    image = drained(started(1, 2, 3), 3)
    created = after(image, create(image, partition_count=6, replication_factor=2))
    assert all(3 not in one.replicas for one in created.topics["orders"].partitions)
    created = after(image, create(image, partition_count=1, replication_factor=3))
    assert sorted(orders_0(created).replicas) == [1, 2, 3]


# Removed brokers


def test_a_broker_is_removed_when_it_is_stopped_and_empty() -> None:
    image = with_topic(started(1, 2, 3), (1, 2))
    with pytest.raises(PolicyViolation, match="broker 3 is running"):
        remove_broker(image, BrokerId(3))
    image = gone(image, 3)
    image = after(image, remove_broker(image, BrokerId(3)))
    assert sorted(image.members) == [1, 2]
    with pytest.raises(BrokerIdNotRegistered):
        remove_broker(image, BrokerId(3))


def test_a_broker_with_replicas_is_not_removed() -> None:
    image = gone(with_topic(started(1, 2, 3), (1, 2)), 2)
    with pytest.raises(PolicyViolation, match="replicas of 1 partitions: drain it first"):
        remove_broker(image, BrokerId(2))
    image = drained(image, 2)
    with pytest.raises(ReassignmentInProgress, match="wait until"):
        remove_broker(image, BrokerId(2))
    image = after(image, drain(image, CONFIG))
    with pytest.raises(ReassignmentInProgress):
        remove_broker(image, BrokerId(2))
    image = in_sync(image, 1, 3)
    assert 2 not in after(image, remove_broker(image, BrokerId(2))).members


def test_a_removed_broker_takes_its_settings_and_its_part_of_tombstones_with_it() -> None:
    image = with_topic(started(1, 2), (1, 2))
    setting = {"log.cleaner.backoff.ms": "1000"}
    image = after(image, replace_broker_config(image, setting, CONFIG, BrokerId(2)))
    assert 2 in image.own_configs
    image = gone(after(image, delete_topic(image, "orders", CONFIG)), 2)
    image = after(image, remove_broker(image, BrokerId(2)))
    assert [one.brokers for one in image.tombstones.values()] == [(1,)]
    assert not image.own_configs


# Elections


def test_the_preferred_replica_leads_when_that_is_requested() -> None:
    image = gone(with_topic(started(1, 2), (1, 2)), 1)
    with pytest.raises(PreferredLeaderNotAvailable, match="not alive"):
        elect_preferred(image, ORDERS_0, CONFIG)
    image = back(image, 1)
    with pytest.raises(PreferredLeaderNotAvailable, match="not in sync"):
        elect_preferred(image, ORDERS_0, CONFIG)
    image = in_sync(image, 1, 2)
    image = after(image, elect_preferred(image, ORDERS_0, CONFIG))
    assert (orders_0(image).leader, orders_0(image).leader_epoch) == (1, 2)
    with pytest.raises(ElectionNotNeeded):
        elect_preferred(image, ORDERS_0, CONFIG)


def test_any_live_replica_leads_when_an_unclean_election_is_requested() -> None:
    image = in_sync(with_topic(started(1, 2), (1, 2)), 1)
    with pytest.raises(ElectionNotNeeded):
        elect_uncleanly(image, ORDERS_0, CONFIG)
    image = gone(image, 1)
    assert orders_0(image).leader is None
    image = after(image, elect_uncleanly(image, ORDERS_0, CONFIG))
    partition = orders_0(image)
    assert (partition.leader, partition.isr) == (2, (2,))
    assert partition.unclean_epoch == partition.leader_epoch
    image = gone(image, 2)
    with pytest.raises(EligibleLeadersNotAvailable, match=r"none of the brokers \[1, 2\]"):
        elect_uncleanly(image, ORDERS_0, CONFIG)
