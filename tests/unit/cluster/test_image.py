"""An image is a value: changes make a new one that shares what stayed the same."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fakes.cluster_images import alive, broker, cluster, put_topic
from ottla.cluster.image import (
    ClusterImage,
    EpochWentBack,
    ImageDraft,
    PartitionMissing,
    TopicImage,
    topic_changes,
)
from ottla.cluster.shared_mappings import KeyRevisions
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import (
    CATALOG_KEY,
    Catalog,
    Change,
    Making,
    Member,
    PartitionImage,
    Ready,
    StoredSettings,
    Tombstone,
    broker_key,
    making_key,
    member_key,
    partition_key,
    ready_key,
    tombstone_key,
    topic_key,
)
from ottla.model import BrokerId, LeaderEpoch, TopicPartition, Uuid

ONE = BrokerId(1)


def topic(name: str, number: int) -> TopicImage:
    partition = PartitionImage(ONE, LeaderEpoch(0), (ONE,), (ONE,), 0)
    return TopicImage(name, Uuid(number.to_bytes(16, "big")), (partition,))


def test_applying_changes_leaves_the_old_image_as_it_was() -> None:
    old = ClusterImage().apply(put_topic(topic("a", 1)), Revision(1))
    new = old.apply([*put_topic(topic("b", 2)), Change(topic_key("a"), None)], Revision(2))
    assert (list(old.topics), list(new.topics)) == (["a"], ["b"])
    assert (old.revision, new.revision) == (1, 2)
    assert new.topic_names == {topic("b", 2).id: "b"}


def test_what_did_not_change_is_shared() -> None:
    registered = alive(broker(ONE), 1)
    old = ClusterImage().apply([*put_topic(topic("a", 1)), *registered], Revision(1))
    new = old.apply(put_topic(topic("b", 2)), Revision(2))
    assert new.brokers is old.brokers
    assert new.topics["a"] is old.topics["a"]
    assert old.apply([Change(broker_key(ONE), None)], Revision(2)).topics is old.topics


def test_a_topic_created_again_under_its_name_is_no_longer_found_by_its_old_id() -> None:
    old = ClusterImage().apply(put_topic(topic("a", 1)), Revision(1))
    new = old.apply(put_topic(topic("a", 2)), Revision(2))
    assert new.topic_by_id(topic("a", 1).id) is None
    assert new.topic_by_id(topic("a", 2).id) == topic("a", 2)


def test_every_key_is_remembered_with_the_revision_that_wrote_it() -> None:
    image = ClusterImage().apply(
        [*put_topic(topic("a", 1)), *put_topic(topic("b", 2))], Revision(1)
    )
    image = image.apply(put_topic(topic("b", 2)), Revision(5))
    image = image.apply([Change(topic_key("a"), None)], Revision(6))
    assert image.mod_revision("topics/a") == NEVER
    assert image.mod_revision("topics/b") == 5


def test_broker_settings_that_are_removed_are_the_empty_ones() -> None:
    settings = Change("settings/brokers", StoredSettings({"num.partitions": "3"}))
    image = ClusterImage().apply([settings], Revision(1))
    assert image.broker_config == {"num.partitions": "3"}
    assert image.apply([Change("settings/brokers", None)], Revision(2)).broker_config == {}


def test_settings_of_one_broker_are_kept_beside_those_of_all() -> None:
    change = Change("settings/brokers/7", StoredSettings({"fetch.max.bytes": "3000"}))
    image = ClusterImage().apply([change], Revision(1))
    assert image.config_of(BrokerId(7)) == {"fetch.max.bytes": "3000"}
    assert image.config_of(None) == image.config_of(BrokerId(8)) == {}
    assert image.apply([Change("settings/brokers/7", None)], Revision(2)).own_configs == {}


def test_settings_of_groups_are_kept_by_their_names() -> None:
    settings = {"consumer.session.timeout.ms": "50000"}
    change = Change("settings/groups/a/b", StoredSettings(settings))
    image = ClusterImage().apply([change], Revision(1))
    assert image.group_configs == {"a/b": settings}
    assert (image.own_configs, image.broker_config) == ({}, {})
    assert image.apply([Change("settings/groups/a/b", None)], Revision(2)).group_configs == {}
    assert image.group_configs == {"a/b": settings}


def test_the_lowest_live_broker_tends_the_cluster() -> None:
    assert ClusterImage().controller_id is None
    image = cluster(3, 2, 10)
    assert image.controller_id == 2
    early = ClusterImage().apply([Change(broker_key(ONE), broker(ONE))], Revision(1))
    assert early.controller_id is None, "it is not ready yet"


def test_a_partition_is_found_by_topic_and_number_or_not_at_all() -> None:
    image = ClusterImage().apply(put_topic(topic("a", 1)), Revision(1))
    assert image.partition(TopicPartition("a", 0)) == topic("a", 1).partitions[0]
    for missing in (TopicPartition("a", 1), TopicPartition("a", -1), TopicPartition("b", 0)):
        assert image.partition(missing) is None


def test_partitions_and_names_for_metrics_are_counted_as_topics_come_and_go() -> None:
    image = ClusterImage().apply(
        [*put_topic(topic("a.b", 1)), *put_topic(topic("c", 2))], Revision(1)
    )
    assert (image.partition_count, dict(image.folded_names)) == (2, {"a_b": "a.b"})
    image = image.apply(put_topic(topic("a.b", 3)), Revision(2))
    assert (image.partition_count, dict(image.folded_names)) == (2, {"a_b": "a.b"})
    image = image.apply([Change(topic_key("a.b"), None)], Revision(3))
    assert (image.partition_count, dict(image.folded_names)) == (1, {})


def test_a_draft_copies_once_however_much_it_changes() -> None:
    base = ClusterImage().apply(put_topic(topic("a", 1)), Revision(1))
    draft = ImageDraft(base)
    for change in put_topic(topic("b", 2)):
        draft.apply(change, Revision(1))
    first = draft.at(Revision(1))
    for change in put_topic(topic("c", 3)):
        draft.apply(change, Revision(1))
    assert draft.at(Revision(1)).topics is first.topics
    assert list(base.topics) == ["a"]


def test_a_revision_never_goes_back() -> None:
    image = ClusterImage().apply(put_topic(topic("a", 1)), Revision(5))
    with pytest.raises(AssertionError, match="revision 4 is older"):
        image.apply(put_topic(topic("b", 2)), Revision(4))


@pytest.mark.parametrize("epochs", [(1, 9), (9, 1)], ids=["leader epoch", "partition epoch"])
def test_epochs_of_a_topic_never_go_back(epochs: tuple[int, int]) -> None:
    def at(leader_epoch: int, partition_epoch: int) -> TopicImage:
        partition = PartitionImage(ONE, LeaderEpoch(leader_epoch), (ONE,), (ONE,), partition_epoch)
        return replace(topic("a", 1), partitions=(partition,))

    image = ClusterImage().apply(put_topic(at(9, 9)), Revision(1))
    with pytest.raises(EpochWentBack, match=r"a-0 is at leader epoch .*, and was at 9 and 9"):
        image.apply(put_topic(at(*epochs)), Revision(2))


def test_a_topic_never_loses_partitions() -> None:
    one = topic("a", 1)
    two = replace(one, partitions=one.partitions * 2)
    image = ClusterImage().apply(put_topic(two), Revision(1))
    with pytest.raises(AssertionError, match="a would lose partitions"):
        image.apply(put_topic(one), Revision(2))


def test_a_topic_created_again_begins_its_epochs_anew() -> None:
    old = topic("a", 1)
    led = replace(old.partitions[0], leader_epoch=LeaderEpoch(7), partition_epoch=7)
    image = ClusterImage().apply(put_topic(replace(old, partitions=(led,))), Revision(1))
    assert image.apply(put_topic(topic("a", 2)), Revision(2)).topics["a"] == topic("a", 2)


def test_tombstones_of_one_commit_are_all_kept_until_each_is_removed() -> None:
    stones = [Tombstone(topic("a", number).id, "a", 1, (ONE,)) for number in (1, 2)]
    puts = [Change(tombstone_key(stone.id), stone) for stone in stones]
    old = ClusterImage().apply(puts, Revision(1))
    assert old.tombstones == {stone.id: stone for stone in stones}
    new = old.apply([Change(puts[0].key, None)], Revision(2))
    assert new.tombstones == {stones[1].id: stones[1]}
    assert len(old.tombstones) == 2


def test_removing_a_topic_that_is_not_there_changes_no_other() -> None:
    image = ClusterImage().apply(put_topic(topic("a_b", 1)), Revision(1))
    for name in ("b", "a.b"):  # in metrics the second has the name of the topic that is there
        again = image.apply([Change(topic_key(name), None)], Revision(2))
        assert (again.topics, again.topic_names) == (image.topics, image.topic_names)
        assert (again.folded_names, again.partition_count) == ({"a_b": "a_b"}, 1)


def key_revisions(known: Mapping[str, Revision]) -> KeyRevisions:
    draft = KeyRevisions().draft()
    for key, revision in known.items():
        draft.put(key, revision)
    return draft.now


def test_a_removed_key_that_has_no_part_in_the_image_is_only_forgotten() -> None:
    image = ClusterImage().apply(
        [*put_topic(topic("a", 1)), Change(CATALOG_KEY, Catalog())],
        Revision(1),
    )
    assert image.mod_revision(CATALOG_KEY) == 1
    again = image.apply([Change(CATALOG_KEY, None)], Revision(2))
    assert again.mod_revision(CATALOG_KEY) == NEVER
    kept = {key: one for key, one in image.mod_revisions.items() if key != CATALOG_KEY}
    assert again == replace(image, revision=Revision(2), mod_revisions=key_revisions(kept))


def partition(leader_epoch: int = 0) -> PartitionImage:
    return PartitionImage(ONE, LeaderEpoch(leader_epoch), (ONE,), (ONE,), leader_epoch)


def test_a_partition_changes_alone() -> None:
    two = replace(topic("a", 1), partitions=(partition(), partition()))
    old = ClusterImage().apply(put_topic(two), Revision(1))
    key = partition_key(two.id, 1)
    new = old.apply([Change(key, partition(5))], Revision(2))
    assert new.topics["a"].partitions == (partition(), partition(5))
    assert new.topics["a"].partitions[0] is old.topics["a"].partitions[0]
    assert (new.mod_revision(key), new.mod_revision("topics/a")) == (2, 1)


def test_partitions_count_with_their_topics_key_and_not_before() -> None:
    made = replace(topic("a", 1), partitions=(partition(), partition(3)))
    *partitions, key = put_topic(made)
    making = Making(made.id, "a", 2)
    image = ClusterImage().apply([Change(making_key(made.id), making), partitions[1]], Revision(1))
    assert (image.topics, image.partition_count) == ({}, 0)
    assert image.detached == {made.id: {1: partition(3)}}
    assert image.making == {made.id: making}
    image = image.apply([partitions[0]], Revision(2))
    assert sorted(image.detached[made.id]) == [0, 1]
    image = image.apply([Change(making_key(made.id), None), key], Revision(3))
    assert (image.topics, image.partition_count) == ({"a": made}, 2)
    assert (image.detached, image.making) == ({}, {})


def test_a_topic_grows_by_partitions_that_are_there() -> None:
    one = topic("a", 1)
    grown = replace(one, partitions=(*one.partitions, partition(2)))
    image = ClusterImage().apply(put_topic(one), Revision(1))
    image = image.apply([Change(partition_key(one.id, 1), partition(2))], Revision(2))
    assert (image.topics["a"], image.partition_count) == (one, 1)
    image = image.apply([put_topic(grown)[-1]], Revision(3))
    assert (image.topics["a"], image.partition_count, image.detached) == (grown, 2, {})


def test_partitions_of_a_deleted_topic_are_left_until_they_are_removed() -> None:
    gone = topic("a", 1)
    image = ClusterImage().apply(put_topic(gone), Revision(1))
    image = image.apply([Change(topic_key("a"), None)], Revision(2))
    assert image.detached == {gone.id: {0: gone.partitions[0]}}
    image = image.apply([Change(partition_key(gone.id, 0), None)], Revision(3))
    assert image == ClusterImage(revision=Revision(3))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_order_of_changes_in_a_revision_does_not_matter(is_reversed: bool) -> None:
    made = replace(topic("a", 1), partitions=(partition(), partition()))
    changes = put_topic(made)
    ends = [Change(change.key, None) for change in changes]
    step = -1 if is_reversed else 1
    image = ClusterImage().apply(changes[::step], Revision(1))
    assert image.topics == {"a": made}
    assert image.apply(ends[::step], Revision(2)) == ClusterImage(revision=Revision(2))


def test_a_partition_that_a_topic_counts_and_that_is_not_there_is_named() -> None:
    made = replace(topic("a", 1), partitions=(partition(), partition()))
    first, second, key = put_topic(made)
    with pytest.raises(PartitionMissing, match="partition 1 of topic 'a' is missing"):
        ClusterImage().apply([first, key], Revision(1))
    image = ClusterImage().apply([first, second, key], Revision(1))
    with pytest.raises(PartitionMissing, match="partition 1 of topic 'a' is missing"):
        image.apply([Change(second.key, None)], Revision(2))


def test_a_broker_is_alive_while_it_is_ready_in_the_epoch_of_its_registration() -> None:
    image = cluster(1)
    member = Member(ONE, epoch=1)
    image = image.apply([Change(member_key(ONE), member)], Revision(2))
    again = image.apply([Change(broker_key(ONE), broker(1))], Revision(3))
    assert (sorted(again.registered), sorted(again.ready), sorted(again.brokers)) == ([1], [1], [])
    ready = again.apply([Change(ready_key(ONE), Ready(ONE, 3))], Revision(4))
    assert ready.brokers[ONE].epoch == 3
    for key in (broker_key(ONE), ready_key(ONE)):
        assert ready.apply([Change(key, None)], Revision(5)).brokers == {}
    assert ready.members == {ONE: member}
    assert ready.apply([Change(member_key(ONE), None)], Revision(5)).members == {}


def test_an_image_shares_what_a_commit_does_not_write() -> None:
    many = [replace(topic(f"t{at}", at), partitions=(partition(),) * 9) for at in range(1, 4)]
    puts = [change for one in many for change in put_topic(one)]
    old = ClusterImage().apply(puts, Revision(1))
    written = Change(partition_key(many[0].id, 3), partition(1))
    new = old.apply([written], Revision(2))
    assert [change[0::3] for change in topic_changes(old.topics, new.topics, new.touched)] == [
        ("t1", [3])
    ]
    assert (new.mod_revision(written.key), old.mod_revision(written.key)) == (2, 1)
    copied = [
        directory
        for directory, part in new.mod_revisions.parts.items()
        if part is not old.mod_revisions.parts[directory]
    ]
    assert copied == [written.key.removesuffix("3")]


def test_topics_that_come_and_go_are_changes_as_a_whole() -> None:
    a, b = topic("a", 1), topic("b", 2)
    old = ClusterImage().apply([*put_topic(a), *put_topic(b)], Revision(1))
    again = replace(topic("a", 3), partitions=(partition(), partition()))
    new = old.apply(
        [Change(topic_key("b"), None), *put_topic(again), *put_topic(topic("c", 4))], Revision(2)
    )
    for touched in (new.touched, None):
        found = {one.name: one for one in topic_changes(old.topics, new.topics, touched)}
        assert {name: (one.old, one.new) for name, one in found.items()} == {
            "a": (a, again),
            "b": (b, None),
            "c": (None, topic("c", 4)),
        }
        assert not any(one.is_same or one.indexes for one in found.values())


def test_a_removed_key_leaves_nothing_behind() -> None:
    one = topic("a", 1)
    old = ClusterImage().apply(put_topic(one), Revision(1))
    removed = [Change(topic_key("a"), None), Change(partition_key(one.id, 0), None)]
    gone = old.apply(removed, Revision(2))
    assert len(old.mod_revisions) == 2
    assert not gone.mod_revisions.parts
    assert not gone.apply(removed, Revision(3)).mod_revisions.parts
