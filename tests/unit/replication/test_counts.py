"""Counts of elections and of changes of the ISR: by the broker that leads afterwards."""

from itertools import pairwise

from fakes.cluster_images import (
    CONFIG,
    ORDERS_0,
    after,
    back,
    cluster,
    gone,
    ids,
    orders_0,
    with_topic,
)
from ottla.cluster.controller.leaders import IsrChange, alter_isrs
from ottla.cluster.image import ClusterImage, topic_changes
from ottla.model import BrokerId, Offset
from ottla.replication.counts import CLEAN, ELIGIBLE, GROW, SHRINK, UNCLEAN, ReplicationCounts
from ottla.replication.followers import Followers

ONE, TWO, THREE = ids(1, 2, 3)


def grown(image: ClusterImage, *isr: int) -> ClusterImage:
    """The image after the leader of the partition has these replicas in sync."""
    now = orders_0(image)
    assert now.leader is not None
    change = IsrChange(ORDERS_0, ids(*isr), now.leader, now.leader_epoch, now.partition_epoch)
    return after(image, alter_isrs(image, [change], CONFIG))


def counted(broker: BrokerId, *images: ClusterImage) -> ReplicationCounts:
    counts = ReplicationCounts(broker)
    for before, later in pairwise(images):
        counts.note_image(topic_changes(before.topics, later.topics, later.touched))
    return counts


def test_who_leads_afterwards_counts_the_election_and_who_fell_out() -> None:
    first = with_topic(cluster(1, 2, 3), (1, 2, 3))
    second = gone(first, 1)
    third = grown(back(second, 1), 1, 2, 3)
    images = (ClusterImage(), first, second, third)
    two = counted(TWO, *images)
    assert two.elections == {CLEAN: 1}
    assert two.isr_changes == {SHRINK: 1, GROW: 1}
    for other in (ONE, THREE):
        assert not counted(other, *images).elections
        assert not counted(other, *images).isr_changes


def test_an_eligible_replica_and_an_unclean_election_are_told_apart() -> None:
    eligible = {"min.insync.replicas": "2"}
    images = [with_topic(cluster(1, 2), (1, 2), config=eligible)]
    images.append(gone(images[-1], 2))
    images.append(gone(images[-1], 1))
    images.append(back(images[-1], 2))
    assert counted(TWO, *images).elections == {ELIGIBLE: 1}
    unclean = {"unclean.leader.election.enable": "true"}
    images = [with_topic(cluster(1, 2), (1, 2), config=unclean)]
    images.append(gone(images[-1], 2))
    images.append(gone(images[-1], 1))
    images.append(back(images[-1], 2))
    assert counted(TWO, *images).elections == {UNCLEAN: 1}


def test_the_lag_is_that_of_the_follower_that_is_furthest_behind() -> None:
    followers = Followers([ONE, TWO], now_s=10.0)
    assert followers.lag(Offset(0), 12.0) == (0, 2.0), "it is not known what they have"
    followers.by_id[ONE].note_fetch(1, Offset(5), Offset(5), 20.0)
    followers.by_id[TWO].note_fetch(1, Offset(5), Offset(5), 21.0)
    assert followers.lag(Offset(5), 99.0) == (0, 0.0)
    followers.by_id[TWO].note_fetch(1, Offset(7), Offset(8), 22.0)
    assert followers.lag(Offset(8), 25.0) == (3, 5.0)
    followers.change([ONE, TWO, THREE], 10.0)
    assert followers.lag(Offset(8), 25.0) == (3, 15.0), "the third has never had everything"
    followers.change([TWO], 10.0)
    assert followers.lag(Offset(8), 25.0) == (1, 4.0)
