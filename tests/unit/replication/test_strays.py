"""What becomes of a log that is found on disk, as far as the store knows it."""

import pytest

from fakes.cluster_images import put_topic
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import Revision
from ottla.cluster.values import Change, PartitionImage, Tombstone, tombstone_key
from ottla.model import BrokerId, LeaderEpoch, TopicPartition, Uuid
from ottla.replication.strays import expected_id, judge
from ottla.storage.found_logs import Fate, FoundLog

BROKER = BrokerId(0)
LIVE, DEAD, UNKNOWN = (Uuid(bytes([number] * 16)) for number in (1, 2, 3))
PARTITION = PartitionImage(BROKER, LeaderEpoch(0), (BROKER,), (BROKER,), 0)


def image(*tombstones: Tombstone) -> ClusterImage:
    topic = TopicImage("orders", LIVE, (PARTITION, PARTITION))
    changes = put_topic(topic)
    changes += [Change(tombstone_key(one.id), one) for one in tombstones]
    return ClusterImage().apply(changes, Revision(1))


def buried(topic: str = "old", partition_count: int = 1, *brokers: BrokerId) -> Tombstone:
    return Tombstone(DEAD, topic, partition_count, brokers or (BROKER,))


@pytest.mark.parametrize(
    ("found", "fate"),
    [
        (FoundLog(TopicPartition("orders", 1), LIVE), Fate.OPEN),
        (FoundLog(TopicPartition("orders", 2), LIVE), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("other", 0), LIVE), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("orders", 0), UNKNOWN), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("old", 0), DEAD), Fate.DELETE),
        (FoundLog(TopicPartition("old", 1), DEAD), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("orders", 0), DEAD), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("orders", 0), None, "damaged"), Fate.OPEN),
        (FoundLog(TopicPartition("orders", 2), None, "damaged"), Fate.SET_ASIDE),
        (FoundLog(TopicPartition("old", 0), None, "damaged"), Fate.SET_ASIDE),
    ],
)
def test_only_what_a_tombstone_names_is_deleted(found: FoundLog, fate: Fate) -> None:
    verdict = judge(image(buried()), BROKER, found)
    assert verdict.fate is fate
    assert bool(verdict.reason) is (fate is Fate.SET_ASIDE)
    if found.topic_id is None and fate is Fate.OPEN:
        assert verdict.topic_id == LIVE


def test_a_log_without_an_id_is_not_taken_for_a_new_topics_while_an_old_one_may_be_here() -> None:
    found = FoundLog(TopicPartition("orders", 0), None, "damaged")
    assert judge(image(buried("orders")), BROKER, found).fate is Fate.SET_ASIDE
    elsewhere = buried("orders", 1, BrokerId(7))
    assert judge(image(elsewhere), BROKER, found).fate is Fate.OPEN


@pytest.mark.parametrize(
    ("tp", "noted_id", "expected"),
    [
        (TopicPartition("orders", 1), LIVE, LIVE),
        (TopicPartition("orders", 1), None, LIVE),
        (TopicPartition("orders", 1), DEAD, None),
        (TopicPartition("orders", 2), LIVE, None),
        (TopicPartition("old", 0), DEAD, None),
    ],
)
def test_a_log_is_expected_if_the_store_gives_it_to_this_broker(
    tp: TopicPartition, noted_id: Uuid | None, expected: Uuid | None
) -> None:
    assert expected_id(image(buried()), BROKER, tp, noted_id) == expected
    assert expected_id(image(buried()), BrokerId(7), tp, noted_id) is None


def test_a_line_without_an_id_may_be_of_an_older_topic_that_was_just_deleted() -> None:
    tp = TopicPartition("orders", 0)
    assert expected_id(image(buried("orders")), BROKER, tp, None) is None
    assert expected_id(image(buried("orders")), BROKER, tp, LIVE) == LIVE
