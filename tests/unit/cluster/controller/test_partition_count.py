"""Decisions on fewer partitions: sealed, retired, listed no more, and active again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.cluster_images import CONFIG, after, cluster, create, put_topic
from ottla.cluster import layout
from ottla.cluster.commits import fitting
from ottla.cluster.controller.configs import (
    ConfigEdit,
    EditKind,
    alter_topic_config,
    replace_topic_config,
)
from ottla.cluster.controller.partition_count import retire, unlist
from ottla.cluster.controller.topics import add_partitions
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.routes import holders_of, is_direct, mapped_id, owner_of, target_of
from ottla.cluster.store import CommitLimits, Revision
from ottla.cluster.values import NEVER_RETIRED, Change, topic_key
from ottla.config import TopicConfig
from ottla.errors import InvalidConfig, InvalidPartitions, InvalidReplicaAssignment
from ottla.model import BrokerId, ProducerId, TimestampMs, TopicPartition
from sizes import examples

DAY_MS = 24 * 3_600_000
NOW_MS = TimestampMs(1_800_000_000_000)


def eight() -> ClusterImage:
    image = cluster(1)
    return after(image, create(image, partition_count=8, replication_factor=1))


def with_active(image: ClusterImage, count: int) -> ClusterImage:
    edit = ConfigEdit(EditKind.SET, "active.partitions", str(count))
    return after(image, alter_topic_config(image, "orders", [edit], CONFIG))


def orders(image: ClusterImage) -> TopicImage:
    return image.topics["orders"]


def retired(image: ClusterImage, *indexes: int, now_ms: int = NOW_MS) -> ClusterImage:
    for index in indexes:
        tp = TopicPartition("orders", index)
        image = after(image, retire(image, tp, TimestampMs(now_ms)))
    return image


def test_sealed_partitions_stay_and_go_to_the_active_ones_in_turn() -> None:
    topic = orders(with_active(eight(), 3))
    assert len(topic.partitions) == topic.listed_count == 8
    assert topic.active_count == 3
    assert [target_of(topic, index) for index in range(3, 8)] == [0, 1, 2, 0, 1]
    assert all(is_direct(topic, index) for index in range(3))
    assert not any(is_direct(topic, index) for index in range(3, 8))


def test_a_target_is_kept_while_a_partition_is_sealed() -> None:
    topic = orders(with_active(with_active(eight(), 5), 2))
    assert target_of(topic, 7) == 2
    assert owner_of(topic, 7) == 0
    assert holders_of(topic, 7) == [7, 2, 0]


def test_a_partition_that_is_active_again_keeps_its_targets_in_a_new_epoch() -> None:
    topic = orders(with_active(with_active(eight(), 5), 8))
    assert topic.active_count == 8
    assert "active.partitions" not in topic.config
    assert topic.partitions[7].forwarded_to == (2,)
    assert topic.partitions[7].leader_epoch == topic.partitions[7].reopened_epoch == 1
    assert topic.partitions[4].leader_epoch == 0
    assert owner_of(topic, 7) == 7
    assert holders_of(topic, 7) == [7, 2]
    assert not is_direct(topic, 7), "its producers may have gone on in partition 2"


def test_the_last_target_is_the_one_that_counts() -> None:
    image = with_active(with_active(with_active(eight(), 5), 8), 3)
    assert orders(image).partitions[7].forwarded_to == (2, 1)
    image = with_active(with_active(image, 8), 5)
    assert orders(image).partitions[7].forwarded_to == (1, 2)


def test_a_store_without_sealed_partitions_is_written_as_before() -> None:
    image = eight()
    for change in put_topic(orders(image)):
        assert change.value is not None
        text = layout.encode(change.key, change.value)
        assert b"forwarded" not in text
        assert b"listed" not in text


def test_everything_about_sealed_partitions_is_stored() -> None:
    image = retired(with_active(with_active(eight(), 5), 2), 7, now_ms=0)
    config = TopicConfig(partition_retire_ms=0)
    image = after(image, unlist(image, "orders", config, NOW_MS))
    stored = [
        Change(change.key, layout.decode(change.key, layout.encode(change.key, change.value)))
        for change in put_topic(orders(image))
        if change.value is not None
    ]
    assert orders(ClusterImage().apply(stored, Revision(1))) == orders(image)
    assert orders(image).listed_count == 7


def test_more_partitions_than_there_are_cannot_be_active() -> None:
    with pytest.raises(InvalidConfig, match="add partitions first"):
        with_active(eight(), 9)


def test_internal_topics_have_active_partitions_only() -> None:
    image = cluster(1)
    image = after(image, create(image, partition_count=8, is_internal=True))
    with pytest.raises(InvalidConfig, match="internal"):
        with_active(image, 3)


def test_a_topic_is_not_created_with_sealed_partitions() -> None:
    with pytest.raises(InvalidConfig, match="leave that out"):
        create(cluster(1), partition_count=8, config={"active.partitions": "3"})


def test_a_request_for_fewer_partitions_names_the_way() -> None:
    with pytest.raises(InvalidPartitions, match=r"active\.partitions=3"):
        add_partitions(eight(), "orders", 3, CONFIG, start=0)


def test_a_request_for_more_partitions_opens_sealed_ones_before_it_adds_any() -> None:
    image = with_active(eight(), 3)
    grown = after(image, add_partitions(image, "orders", 5, CONFIG, start=0))
    assert (orders(grown).active_count, len(orders(grown).partitions)) == (5, 8)
    grown = after(grown, add_partitions(grown, "orders", 10, CONFIG, start=0))
    assert (orders(grown).active_count, len(orders(grown).partitions)) == (10, 10)
    assert orders(grown).listed_count == 10


def test_partitions_that_are_opened_keep_their_replicas() -> None:
    image = with_active(eight(), 3)
    with pytest.raises(InvalidReplicaAssignment, match="leave the assignments out"):
        add_partitions(image, "orders", 5, CONFIG, start=0, assignments=[[BrokerId(1)]] * 2)


def test_settings_that_do_not_name_it_open_all_partitions() -> None:
    image = with_active(eight(), 3)
    image = after(image, replace_topic_config(image, "orders", {"retention.ms": "1"}, CONFIG))
    assert orders(image).active_count == 8


def test_many_partitions_are_sealed_in_several_commits_and_by_the_last_one() -> None:
    image = cluster(1)
    image = after(image, create(image, partition_count=100, replication_factor=1))
    limits = CommitLimits(writes=16, compares=64, size_bytes=1 << 20)
    edit = ConfigEdit(EditKind.SET, "active.partitions", "1")
    for target in (edit, ConfigEdit(EditKind.DELETE, "active.partitions")):
        before = orders(image).active_count
        for _ in range(20):
            decision = alter_topic_config(image, "orders", [target], CONFIG)
            part = fitting(image, decision.changes, limits)
            is_last = topic_key("orders") in {change.key for change in part}
            image = image.apply(part, Revision(image.revision + 1))
            assert (orders(image).active_count == before) is not is_last
            if is_last:
                break
        assert orders(image).active_count == (1 if target is edit else 100)
        assert not image.making


def test_only_sealed_partitions_retire_and_once() -> None:
    image = with_active(eight(), 3)
    assert not retire(image, TopicPartition("orders", 2), NOW_MS).changes
    assert not retire(image, TopicPartition("orders", 8), NOW_MS).changes
    assert not retire(image, TopicPartition("gone", 2), NOW_MS).changes
    image = retired(image, 7)
    assert orders(image).partitions[7].retired_ms == NOW_MS
    assert not retire(image, TopicPartition("orders", 7), NOW_MS).changes


def test_only_the_last_partitions_leave_the_list_and_in_time() -> None:
    image = retired(with_active(eight(), 3), 7, 6, 3)
    config = TopicConfig()
    assert not unlist(image, "orders", config, TimestampMs(NOW_MS + DAY_MS - 1)).changes
    image = after(image, unlist(image, "orders", config, TimestampMs(NOW_MS + DAY_MS)))
    assert orders(image).listed_count == 6
    assert not unlist(image, "gone", config, NOW_MS).changes


def test_a_partition_that_is_active_again_is_listed_and_not_retired() -> None:
    image = retired(with_active(eight(), 3), 7, 6, 5, 4, 3)
    image = after(image, unlist(image, "orders", TopicConfig(partition_retire_ms=0), NOW_MS))
    assert orders(image).listed_count == 3
    image = with_active(image, 6)
    assert orders(image).listed_count == 6
    assert orders(image).partitions[5].retired_ms == NEVER_RETIRED
    assert orders(image).partitions[6].retired_ms == NOW_MS
    assert orders(with_active(image, 8)).listed_count == 8


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 9), max_size=8))
def test_routes_end_at_active_partitions_whatever_was_sealed(counts: list[int]) -> None:
    image = cluster(1)
    image = after(image, create(image, partition_count=9, replication_factor=1))
    earlier: dict[int, set[int]] = {index: {index} for index in range(9)}
    for count in counts:
        before = orders(image)
        image = with_active(image, count)
        topic = orders(image)
        for index in range(9):
            assert owner_of(topic, index) < count
            assert (owner_of(topic, index) == index) is (index < count)
            if before.active_count <= index >= count:
                assert target_of(topic, index) == target_of(before, index), "fixed while sealed"
            earlier[index].add(owner_of(topic, index))
            assert earlier[index] <= set(holders_of(topic, index))
            assert topic.partitions[index].leader_epoch >= before.partitions[index].leader_epoch
    assert len(orders(image).partitions) == 9


@given(st.integers(0, 2**40 - 1), st.integers(0, 10_000), st.integers(0, 10_000))
def test_mapped_ids_are_told_apart_and_mapped_once(number: int, index: int, other: int) -> None:
    mapped = mapped_id(ProducerId(number), index)
    assert 2**40 <= mapped < 2**63
    assert mapped_id(mapped, other) == mapped
    assert (mapped == mapped_id(ProducerId(number), other)) is (index == other)
    assert mapped_id(ProducerId(-1), index) == -1


def test_a_found_log_beyond_the_active_partitions_has_a_target() -> None:
    topic = orders(with_active(eight(), 3))
    found = replace(topic, partitions=(*topic.partitions, topic.partitions[0]))
    assert owner_of(found, 8) == 2
    assert holders_of(found, 8) == [8, 2]
