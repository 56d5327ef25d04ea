"""Decisions on brokers, leaders and in-sync replicas, and every refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes.cluster_images import (
    CONFIG,
    ORDERS_0,
    after,
    back,
    broker,
    cluster,
    gone,
    ids,
    orders_0,
    with_topic,
)
from ottla.cluster.controller.brokers import (
    NotRegistered,
    note_dead,
    note_generation,
    note_leaving,
    note_ready,
    register_broker,
    suspect,
)
from ottla.cluster.controller.configs import (
    replace_broker_config,
    replace_topic_config,
)
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.leaders import (
    IneligibleReplica,
    IsrChange,
    StalePartitionEpoch,
    alter_isr,
    alter_isrs,
    begin_terms,
    forfeit_damaged,
    prefer_leaders,
    raise_epochs,
    replication_rules,
    settle_leaders,
)
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import Change, PartitionImage, broker_key
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.model import (
    BrokerId,
    LeaderEpoch,
    TopicPartition,
)

# Brokers and leaders


def test_a_brokers_epoch_is_the_revision_of_its_registration() -> None:
    image = back(cluster(1), 2)
    epoch = image.brokers[BrokerId(2)].epoch
    assert image.brokers[BrokerId(2)] == replace(broker(2), epoch=epoch)
    assert image.members[BrokerId(2)].epoch == image.ready[BrokerId(2)].epoch == epoch
    assert back(image, 2).brokers[BrokerId(2)].epoch > epoch


def test_a_broker_that_is_registered_and_not_ready_counts_as_dead() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    image = after(image, register_broker(image, broker(1)))
    assert sorted(image.registered) == [1, 2]
    assert sorted(image.brokers) == [2]
    image = after(image, settle_leaders(image, CONFIG))
    assert (orders_0(image).leader, orders_0(image).isr) == (2, (2,))


def test_a_broker_that_starts_anew_leads_what_nobody_took_over_in_new_epochs() -> None:
    image = with_topic(cluster(1), (1,), (1,), (1,))
    image = after(image, register_broker(image, broker(1)))
    epoch = image.registered[BrokerId(1)].epoch
    image = after(image, begin_terms(image, BrokerId(1), epoch, 2))
    assert terms(image) == [(1, 1, 1), (1, 1, 1), (1, 0, 0)]
    image = after(image, begin_terms(image, BrokerId(1), epoch, 2))
    assert terms(image) == [(1, 1, 1)] * 3
    assert begin_terms(image, BrokerId(1), epoch).changes == (), "once for each registration"
    image = after(image, note_ready(image, BrokerId(1), epoch))
    assert settle_leaders(image, CONFIG).changes == ()


def test_a_broker_that_starts_anew_leaves_others_what_they_lead() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2), (2, 1), (2, 3))
    image = after(image, register_broker(image, broker(1)))
    image = after(image, settle_leaders(image, CONFIG))
    assert [one[0] for one in terms(image)] == [2, 2, 2]
    assert begin_terms(image, BrokerId(1), image.registered[BrokerId(1)].epoch).changes == ()


def terms(image: ClusterImage) -> list[tuple[BrokerId | None, LeaderEpoch, int]]:
    """Leader, leader epoch and partition epoch of each partition."""
    return [
        (one.leader, one.leader_epoch, one.partition_epoch)
        for one in image.topics["orders"].partitions
    ]


@pytest.mark.parametrize("epoch", [1, 99])
def test_only_the_registration_of_today_becomes_ready(epoch: int) -> None:
    image = cluster(1, 2)
    image = after(image, register_broker(image, broker(1)))
    with pytest.raises(NotRegistered):
        note_ready(image, BrokerId(1), epoch)
    with pytest.raises(NotRegistered):
        note_ready(image, BrokerId(7), epoch)


def suspected(image: ClusterImage, by: int, stale: Revision = NEVER) -> ClusterImage:
    """The image after `by` has found broker 1 gone."""
    epoch = image.registered[BrokerId(1)].epoch
    return after(image, suspect(image, BrokerId(1), epoch, BrokerId(by), stale))


def on_machines(**machines: str) -> ClusterImage:
    """Brokers b1, b2, ... that are ready, on the machines with these names."""
    image = ClusterImage()
    for name, machine in machines.items():
        registered = replace(broker(int(name[1:])), machine=machine)
        image = after(image, register_broker(image, registered))
        image = after(image, note_ready(image, registered.id, int(image.revision)))
    return image


def test_two_brokers_have_to_find_one_on_another_machine_gone() -> None:
    image = suspected(on_machines(b1="m", b2="n", b3="o"), 2)
    assert BrokerId(1) in image.brokers
    assert image.suspicions[BrokerId(1)].by == (2,)
    assert suspected(image, 2).suspicions == image.suspicions
    image = suspected(image, 3)
    assert (BrokerId(1) in image.registered, image.suspicions) == (False, {})


@pytest.mark.parametrize(
    "image", [on_machines(b1="m", b2="m", b3="o"), on_machines(b1="m", b2="n")]
)
def test_one_is_enough_on_the_same_machine_or_if_there_is_no_other(image: ClusterImage) -> None:
    assert BrokerId(1) not in suspected(image, 2).registered


def test_a_witness_that_is_dead_itself_does_not_count() -> None:
    image = gone(suspected(on_machines(b1="m", b2="n", b3="o", b4="p"), 2), 2)
    assert BrokerId(1) in suspected(image, 3).registered


def test_what_was_found_long_ago_does_not_count() -> None:
    image = suspected(on_machines(b1="m", b2="n", b3="o"), 2)
    again = suspected(image, 3, stale=image.revision)
    assert again.suspicions[BrokerId(1)].by == (3,)
    renewed = suspected(image, 2, stale=image.revision)
    assert BrokerId(1) not in suspected(renewed, 3, stale=image.revision).registered


def test_a_suspicion_ends_with_the_registration_that_it_is_about() -> None:
    image = back(suspected(on_machines(b1="m", b2="n", b3="o"), 2), 1)
    assert image.suspicions == {}
    old_epoch = image.brokers[BrokerId(1)].epoch - 1
    assert suspect(image, BrokerId(1), old_epoch, BrokerId(2)).changes == ()
    assert suspect(image, BrokerId(9), old_epoch, BrokerId(2)).changes == ()


def test_when_the_leader_goes_the_next_replica_in_sync_leads() -> None:
    image = gone(with_topic(cluster(1, 2, 3), (1, 2, 3)), 1)
    assert orders_0(image) == PartitionImage(
        leader=BrokerId(2),
        leader_epoch=LeaderEpoch(1),
        replicas=ids(1, 2, 3),
        isr=ids(2, 3),
        partition_epoch=1,
        is_new=True,
    )


@pytest.mark.parametrize(
    ("newcomers", "leader"),
    [((2,), 3), ((3,), 2), ((3, 2), 3), ((2, 3), 2), ((4, 2), 3), ((1,), 2)],
)
def test_a_broker_that_has_just_come_is_elected_last(
    newcomers: tuple[int, ...], leader: int
) -> None:
    image = with_topic(cluster(1, 2, 3, 4), (1, 2, 3))
    image = image.apply([Change(broker_key(BrokerId(1)), None)], Revision(9))
    partition = orders_0(after(image, settle_leaders(image, CONFIG, None, ids(*newcomers))))
    assert (partition.leader, partition.isr) == (leader, (2, 3))


def test_a_broker_that_has_just_come_still_leads_what_it_leads() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    assert settle_leaders(image, CONFIG, None, ids(1)).changes == ()


def test_when_a_follower_goes_only_the_isr_shrinks() -> None:
    image = gone(with_topic(cluster(1, 2), (1, 2)), 2)
    partition = orders_0(image)
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 1)
    assert partition.isr == (1,)


def test_the_last_one_in_sync_stays_in_sync_though_nobody_leads() -> None:
    partition = orders_0(gone(with_topic(cluster(1, 2), (1, 2)), 1, 2))
    assert (partition.leader, partition.isr, partition.leader_epoch) == (None, (2,), 2)


def test_only_a_replica_in_sync_brings_the_partition_back() -> None:
    image = gone(with_topic(cluster(1, 2), (1, 2)), 1, 2)
    image = back(image, 1)
    assert orders_0(image).leader is None
    image = back(image, 2)
    assert (orders_0(image).leader, orders_0(image).isr) == (2, (2,))
    assert orders_0(image).leader_epoch == 3


def test_an_unclean_leader_is_elected_where_the_topic_allows_it() -> None:
    image = with_topic(cluster(1, 2), (1, 2), config={"unclean.leader.election.enable": "true"})
    image = back(gone(image, 1, 2), 1)
    assert (orders_0(image).leader, orders_0(image).isr) == (1, (1,))


def test_allowing_unclean_election_elects_at_once_for_the_topic_or_for_all() -> None:
    image = back(gone(with_topic(cluster(1, 2), (1, 2)), 1, 2), 1)
    allowed = {"unclean.leader.election.enable": "true"}
    for decision in (
        replace_topic_config(image, "orders", allowed, CONFIG),
        replace_broker_config(image, allowed, CONFIG),
    ):
        assert orders_0(after(image, decision)).leader == 1


def test_a_topic_that_forbids_unclean_election_outweighs_the_brokers() -> None:
    forbidden = {"unclean.leader.election.enable": "false"}
    image = back(gone(with_topic(cluster(1, 2), (1, 2), config=forbidden), 1, 2), 1)
    allowed = {"unclean.leader.election.enable": "true"}
    image = after(image, replace_broker_config(image, allowed, CONFIG))
    assert orders_0(image).leader is None


def test_a_leader_that_starts_anew_leads_in_a_new_epoch_only() -> None:
    image = back(with_topic(cluster(1), (1,)), 1)
    partition = orders_0(image)
    assert partition.leader == 1
    assert partition.leader_epoch > 0


def test_a_leader_that_starts_anew_hands_over_to_those_who_stayed() -> None:
    partition = orders_0(back(with_topic(cluster(1, 2), (1, 2)), 1))
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2,), 1)


def test_a_restart_is_no_reason_for_an_unclean_election() -> None:
    image = with_topic(cluster(1, 2), (1, 2), config={"unclean.leader.election.enable": "true"})
    image = back(gone(image, 2), 2)
    assert orders_0(back(image, 1)).leader == 1


def test_leaders_are_settled_from_the_image_alone_and_then_stay() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3), (2, 3, 1), (3, 1, 2))
    image = image.apply(  # two leases ran out: the store removes keys and knows nothing of leaders
        [Change(broker_key(BrokerId(number)), None) for number in (1, 2)], Revision(9)
    )
    image = after(image, settle_leaders(image, CONFIG))
    partitions = image.topics["orders"].partitions
    assert [partition.leader for partition in partitions] == [3, 3, 3]
    assert [partition.leader_epoch for partition in partitions] == [1, 1, 0]
    assert settle_leaders(image, CONFIG).changes == ()


# In-sync replicas


def isr_change(
    image: ClusterImage, isr: Sequence[BrokerId], **seen: Any
) -> Decision[PartitionImage]:
    partition = orders_0(image)
    assert partition.leader is not None
    change = IsrChange(
        ORDERS_0,
        tuple(isr),
        seen.get("leader", partition.leader),
        LeaderEpoch(seen.get("leader_epoch", partition.leader_epoch)),
        seen.get("partition_epoch", partition.partition_epoch),
        seen.get("epochs", {}),
    )
    return alter_isr(image, change, replication_rules({}, CONFIG))


def test_the_leader_takes_followers_out_of_the_isr_and_back_in() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3))
    image = after(image, isr_change(image, ids(3, 1)))
    assert orders_0(image).isr == (1, 3)
    image = after(image, isr_change(image, ids(3, 2, 1)))
    assert (orders_0(image).isr, orders_0(image).partition_epoch) == ((1, 2, 3), 2)
    assert orders_0(image).leader_epoch == 0
    assert isr_change(image, ids(1, 2, 3)).changes == ()


@pytest.mark.parametrize(
    ("isr", "seen", "refusal"),
    [
        (ids(1), {"leader_epoch": 0}, FencedLeaderEpoch),
        (ids(1), {"leader_epoch": 2}, UnknownLeaderEpoch),
        (ids(3), {"leader": BrokerId(3)}, NotLeader),
        (ids(2), {"partition_epoch": 0}, StalePartitionEpoch),
        (ids(3), {}, InvalidRequest),
        ((), {}, InvalidRequest),
        (ids(2, 4), {}, InvalidRequest),
        (ids(2, 1), {}, IneligibleReplica),
    ],
)
def test_a_change_of_the_isr_that_does_not_fit_is_refused(
    isr: Sequence[BrokerId], seen: Mapping[str, int], refusal: type[ApiError]
) -> None:
    image = gone(with_topic(cluster(1, 2, 3, 4), (1, 2, 3)), 1)
    with pytest.raises(refusal):
        isr_change(image, isr, **seen)


def test_a_change_of_the_isr_of_nothing_is_refused() -> None:
    image = with_topic(cluster(1), (1,))
    for name, partition in (("orders", 1), ("orders", -1), ("other", 0)):
        tp = TopicPartition(name, partition)
        change = IsrChange(tp, ids(1), BrokerId(1), LeaderEpoch(0), 0)
        with pytest.raises(UnknownTopicOrPartition):
            alter_isr(image, change, replication_rules({}, CONFIG))


def test_a_follower_joins_only_as_the_process_that_caught_up() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    image = back(gone(image, 2), 2)
    epoch = image.brokers[BrokerId(2)].epoch
    with pytest.raises(IneligibleReplica, match="started anew"):
        isr_change(image, ids(1, 2), epochs={BrokerId(2): epoch - 1})
    image = after(image, isr_change(image, ids(1, 2), epochs={BrokerId(2): epoch}))
    assert orders_0(image).isr == (1, 2)


def test_the_first_change_of_its_leader_opens_a_partition() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    assert orders_0(image).is_new
    assert orders_0(gone(image, 2)).is_new
    opened = orders_0(after(image, isr_change(image, ids(1, 2))))
    assert (opened.is_new, opened.isr, opened.partition_epoch) == (False, (1, 2), 1)
    assert not orders_0(with_topic(cluster(1), (1,))).is_new, "nothing can be fetched elsewhere"


def test_of_many_changes_those_are_made_that_fit() -> None:
    image = gone(with_topic(cluster(1, 2, 3), (1, 2, 3), (1, 3, 2)), 3)
    good, outdated = (
        IsrChange(TopicPartition("orders", index), ids(1), BrokerId(1), LeaderEpoch(0), epoch)
        for index, epoch in ((0, 1), (1, 0))
    )
    image = after(image, alter_isrs(image, [outdated, good], CONFIG))
    assert [one.isr for one in image.topics["orders"].partitions] == [(1,), (1, 2)]


# Eligible leader replicas

TWO_IN_SYNC = {"min.insync.replicas": "2"}


def eligible(image: ClusterImage) -> tuple[Sequence[BrokerId], Sequence[BrokerId]]:
    return orders_0(image).isr, orders_0(image).elr


def test_those_that_leave_an_isr_that_is_too_small_stay_eligible() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3), config=TWO_IN_SYNC)
    image = gone(image, 3)
    assert eligible(image) == ((1, 2), ()), "two are enough"
    image = gone(image, 2)
    assert eligible(image) == ((1,), (2,))
    image = after(image, isr_change(image, ids(1)))
    assert eligible(image) == ((1,), (2,))


def test_an_eligible_replica_leads_when_none_in_sync_is_left() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3), config=TWO_IN_SYNC)
    image = gone(gone(gone(image, 3), 2), 1)
    assert (orders_0(image).leader, *eligible(image)) == (None, (1,), (2,))
    assert orders_0(back(image, 3)).leader is None, "it may not have everything"
    image = back(image, 2)
    assert (orders_0(image).leader, *eligible(image)) == (2, (2,), (1,))
    assert orders_0(image).unclean_epoch == -1


def test_with_enough_in_sync_none_is_eligible_besides_them() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3), config=TWO_IN_SYNC)
    image = back(gone(gone(image, 3), 2), 3)
    image = after(image, isr_change(image, ids(1, 3)))
    assert eligible(image) == ((1, 3), ())


def test_a_smaller_minimum_makes_those_in_sync_enough() -> None:
    image = gone(gone(with_topic(cluster(1, 2, 3), (1, 2, 3), config=TWO_IN_SYNC), 3), 2)
    for decision in (
        replace_topic_config(image, "orders", {"min.insync.replicas": "1"}, CONFIG),
        replace_topic_config(image, "orders", {}, CONFIG),
    ):
        assert eligible(after(image, decision)) == ((1,), ())


def test_an_unclean_leader_is_the_only_one_that_has_everything_it_has() -> None:
    config = {**TWO_IN_SYNC, "unclean.leader.election.enable": "true"}
    image = gone(gone(gone(with_topic(cluster(1, 2, 3), (1, 2, 3), config=config), 3), 2), 1)
    image = back(image, 3)
    partition = orders_0(image)
    assert (partition.leader, partition.isr, partition.elr) == (3, (3,), ())
    assert partition.unclean_epoch == partition.leader_epoch


def test_an_eligible_replica_that_is_starting_is_waited_for() -> None:
    config = {**TWO_IN_SYNC, "unclean.leader.election.enable": "true"}
    image = gone(gone(gone(with_topic(cluster(1, 2, 3), (1, 2, 3), config=config), 3), 2), 1)
    image = after(image, register_broker(image, broker(2)))
    image = back(image, 3)
    assert orders_0(image).leader is None
    image = back(image, 2)
    assert (orders_0(image).leader, orders_0(image).unclean_epoch) == (2, -1)


# Preferred leaders and leaving


def test_the_first_replica_leads_again_once_it_is_in_sync() -> None:
    image = back(gone(with_topic(cluster(1, 2), (1, 2)), 1), 1)
    assert orders_0(image).leader == 2
    assert prefer_leaders(image, CONFIG).changes == (), "it is not in sync"
    image = after(image, isr_change(image, ids(1, 2)))
    epoch = orders_0(image).leader_epoch
    image = after(image, prefer_leaders(image, CONFIG))
    assert (orders_0(image).leader, orders_0(image).leader_epoch) == (1, epoch + 1)
    assert prefer_leaders(image, CONFIG).changes == ()


def test_a_dead_broker_is_removed_as_the_registration_that_died() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    epoch = image.brokers[BrokerId(1)].epoch
    removed = after(image, note_dead(image, BrokerId(1), epoch))
    assert sorted(removed.registered) == sorted(removed.ready) == [2]
    assert note_dead(removed, BrokerId(1), epoch).changes == ()
    assert note_dead(back(image, 1), BrokerId(1), epoch).changes == ()


def test_a_broker_that_leaves_hands_over_what_it_leads() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    image = after(image, note_leaving(image, BrokerId(1)))
    assert BrokerId(1) in image.registered
    image = after(image, settle_leaders(image, CONFIG))
    assert (orders_0(image).leader, orders_0(image).isr) == (2, (2,))
    assert note_leaving(image, BrokerId(1)).changes == ()


def test_leader_epochs_are_raised_to_what_the_logs_have_seen() -> None:
    image = with_topic(cluster(1), (1,), (1,))
    seen = {
        TopicPartition("orders", 0): LeaderEpoch(4),
        TopicPartition("orders", 1): LeaderEpoch(-1),
    }
    raised = after(image, raise_epochs(image, seen))
    assert [one.leader_epoch for one in raised.topics["orders"].partitions] == [4, 0]
    assert raise_epochs(raised, seen).changes == ()


# Damage


def test_a_damaged_follower_leaves_in_a_new_leader_epoch() -> None:
    """A fetch from before, which says that it has everything, is of an older epoch."""
    image = with_topic(cluster(1, 2, 3), (1, 2, 3))
    before = orders_0(image)
    image = after(image, forfeit_damaged(image, BrokerId(2), [ORDERS_0]))
    now = orders_0(image)
    assert (now.leader, now.isr, now.elr) == (1, (1, 3), ())
    assert now.leader_epoch == before.leader_epoch + 1
    assert now.partition_epoch == before.partition_epoch + 1
    assert not forfeit_damaged(image, BrokerId(2), [ORDERS_0]).changes


def test_a_damaged_leader_gives_way_to_a_live_replica_in_sync() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2, 3))
    image = image.apply([Change(broker_key(BrokerId(2)), None)], Revision(image.revision + 1))
    image = after(image, forfeit_damaged(image, BrokerId(1), [ORDERS_0]))
    assert (orders_0(image).leader, orders_0(image).isr) == (3, (2, 3))


def test_below_the_minimum_a_damaged_replica_is_not_eligible() -> None:
    image = with_topic(cluster(1, 2), (1, 2), config={"min.insync.replicas": "2"})
    image = after(image, forfeit_damaged(image, BrokerId(2), [ORDERS_0]))
    assert (orders_0(image).isr, orders_0(image).elr) == ((1,), ())
    image = gone(image, 1)
    assert orders_0(image).leader is None, "it lacks what was committed"


def test_the_last_replica_that_has_everything_stays_though_it_is_damaged() -> None:
    image = gone(with_topic(cluster(1, 2), (1, 2)), 2)
    assert not forfeit_damaged(image, BrokerId(1), [ORDERS_0]).changes
    alone = with_topic(cluster(1), (1,))
    assert not forfeit_damaged(alone, BrokerId(1), [ORDERS_0]).changes
    gone_all = gone(with_topic(cluster(1, 2), (1, 2), config={"min.insync.replicas": "2"}), 2, 1)
    one = after(gone_all, forfeit_damaged(gone_all, BrokerId(2), [ORDERS_0]))
    assert orders_0(one).isr == (1,)
    assert not forfeit_damaged(one, BrokerId(1), [ORDERS_0]).changes


def test_the_generation_of_a_disk_only_rises_and_only_within_its_registration() -> None:
    image = back(back(cluster(), 1), 2)
    epoch = image.members[BrokerId(1)].epoch
    image = after(image, note_generation(image, BrokerId(1), epoch, 2))
    assert image.members[BrokerId(1)].generation == 2
    for stale in (
        note_generation(image, BrokerId(1), epoch, 2),
        note_generation(image, BrokerId(1), epoch, 1),
        note_generation(image, BrokerId(1), epoch - 1, 3),
        note_generation(image, BrokerId(7), epoch, 3),
    ):
        assert not stale.changes
    assert image.members[BrokerId(2)].generation == 0
