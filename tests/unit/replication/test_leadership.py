"""What a broker leads no more, from one image to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fakes.cluster_images import CONFIG, after, back, cluster, create, gone, with_topic
from ottla.cluster.controller.reassignment import begin_move
from ottla.cluster.image import ClusterImage, TopicChange, TopicImage, topic_changes
from ottla.cluster.store import Revision
from ottla.cluster.values import Change, topic_key
from ottla.errors import NotLeader, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicPartition
from ottla.replication.leadership import (
    changed_topics,
    kept_partitions,
    lost_partitions,
    restarted_brokers,
)

ONE, TWO = BrokerId(1), BrokerId(2)


def changes(before: ClusterImage, now: ClusterImage) -> list[TopicChange]:
    """The changes from one image to the next; what the store wrote or a comparison, both alike."""
    found = topic_changes(before.topics, now.topics, now.touched)
    compared = topic_changes(before.topics, now.topics, None)
    assert _by_name(found) == _by_name(compared)
    return found


def _by_name(found: list[TopicChange]) -> list[tuple[str, list[int]]]:
    return sorted((change.name, sorted(change.indexes)) for change in found)


def lost(before: ClusterImage, now: ClusterImage, broker: BrokerId) -> list[tuple[str, type]]:
    return [(str(tp), type(error)) for tp, error in lost_partitions(changes(before, now), broker)]


def test_what_another_broker_leads_is_lost() -> None:
    before = with_topic(cluster(1, 2), (1, 2), (2, 1), (1, 2))
    now = gone(before, 1)
    assert lost(before, now, ONE) == [("orders-0", NotLeader), ("orders-2", NotLeader)]
    assert lost(before, now, TWO) == []
    assert lost(now, back(now, 1), TWO) == []


def test_what_nobody_leads_is_lost() -> None:
    before = with_topic(cluster(1), (1,))
    assert lost(before, gone(before, 1), ONE) == [("orders-0", NotLeader)]


def test_what_was_deleted_is_lost_also_if_its_name_is_used_again() -> None:
    before = with_topic(cluster(1, 2), (1,), (2,))
    now = before.apply([Change(topic_key("orders"), None)], Revision(before.revision + 1))
    assert lost(before, now, ONE) == [("orders-0", UnknownTopicOrPartition)]
    again = after(now, create(now, replication_factor=1, partition_count=2))
    assert lost(before, again, ONE) == [("orders-0", UnknownTopicOrPartition)]


def test_nothing_is_lost_by_what_does_not_concern_the_leader() -> None:
    before = with_topic(cluster(1, 2, 3), (1, 2, 3))
    assert lost(before, gone(before, 3), ONE) == []
    assert lost(before, before, ONE) == []
    assert TopicPartition("orders", 0) in dict(
        lost_partitions(changes(before, ClusterImage()), ONE)
    )


def test_another_epoch_of_the_same_leader_is_another_leadership() -> None:
    before = with_topic(cluster(1), (1,))
    assert lost(before, back(before, 1), ONE) == [("orders-0", NotLeader)]


def test_a_leader_leads_on_when_replicas_are_dropped() -> None:
    before = with_topic(cluster(1, 2, 3), (1, 2, 3))
    tp = TopicPartition("orders", 0)
    now = after(before, begin_move(before, tp, (ONE, TWO), CONFIG))
    assert now.topics["orders"].partitions[0].leader_epoch == 1
    assert lost(before, now, ONE) == []
    assert list(dict(kept_partitions(changes(before, now), ONE))) == [tp]


def test_a_leader_is_notified_of_another_isr_only() -> None:
    before = with_topic(cluster(1, 2, 3), (1, 2, 3), (2, 3, 1), (1, 2, 3))
    now = gone(before, 3)
    kept = dict(kept_partitions(changes(before, now), ONE))
    assert list(kept) == [TopicPartition("orders", 0), TopicPartition("orders", 2)]
    assert kept[TopicPartition("orders", 0)].isr == (1, 2)
    assert list(kept_partitions(changes(now, now), ONE)) == []
    assert list(kept_partitions(changes(before, gone(before, 1)), ONE)) == []


def test_brokers_that_are_gone_or_registered_anew_have_restarted() -> None:
    before = cluster(1, 2, 3)
    assert restarted_brokers(before, gone(before, 3)) == [3]
    assert restarted_brokers(before, back(before, 2)) == [2]
    assert restarted_brokers(gone(before, 2), before) == []


def test_only_partitions_that_have_changed_are_looked_at_again() -> None:
    before = with_topic(cluster(1, 2, 3), (1, 2), (2, 3), (3, 1))
    image = gone(before, 2)
    now = image.topics
    (topic,) = now.values()

    def changed(known: Mapping[str, TopicImage], again: Iterable[str] = ()) -> list[int]:
        found = changed_topics(topic_changes(known, now, image.touched), now, again)
        assert all(one is topic for one, _ in found)
        return [tp.partition for _, partitions in found for tp, _ in partitions]

    assert changed(before.topics) == [0, 1]
    assert changed(before.topics, {"orders"}) == changed({}) == [0, 1, 2]
    assert changed({"orders": replace(topic, config={"a": "b"})}) == [0, 1, 2]
    assert changed(now) == []
    assert changed(now, {"orders"}) == [0, 1, 2]
