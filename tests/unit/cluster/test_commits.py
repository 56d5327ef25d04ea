"""What a commit compares, and how many changes one takes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes.cluster_images import CONFIG, after, broker, cluster, create, gone, ids, with_topic
from ottla.cluster.commits import compares, fits, fitting, writes
from ottla.cluster.controller.brokers import register_broker
from ottla.cluster.controller.leaders import settle_leaders
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import NEVER, SMALLEST_LIMITS, Delete, LeaseId, Put, Revision
from ottla.cluster.values import Change, Making, StoredTopic, broker_key, making_key, partition_key
from ottla.errors import PolicyViolation
from ottla.model import BrokerId

LIMITS = SMALLEST_LIMITS


def keys(changes: Sequence[Change]) -> list[str]:
    return [change.key for change in changes]


def test_what_fits_is_one_commit() -> None:
    image = cluster(1)
    changes = create(
        image, assignment={index: ids(1) for index in range(LIMITS.writes - 2)}
    ).changes
    assert len(changes) == LIMITS.writes
    assert fits(image, changes, LIMITS)
    assert fitting(image, changes, LIMITS) is changes


def test_partitions_that_do_not_fit_are_announced_and_their_topic_comes_last() -> None:
    image = cluster(1)
    decision = create(image, assignment={index: ids(1) for index in range(100)})
    topic_id = decision.result.id
    assert not fits(image, decision.changes, LIMITS)
    first = fitting(image, decision.changes, LIMITS)
    assert first[0] == Change(making_key(topic_id), Making(topic_id, "orders", 100))
    assert keys(first[1:]) == [partition_key(topic_id, index) for index in range(LIMITS.writes - 1)]
    half = image.apply(first, Revision(image.revision + 1))
    rest = decision.changes[LIMITS.writes - 1 :]
    assert fitting(half, rest, LIMITS) is rest, "it is announced already"


@pytest.mark.parametrize("count", range(LIMITS.writes - 3, LIMITS.writes + 3))
def test_what_makes_partitions_count_is_never_torn(count: int) -> None:
    image = cluster(1)
    decision = create(image, assignment={index: ids(1) for index in range(count)})
    first = fitting(image, decision.changes, LIMITS)
    seen = image.apply(first, image.revision)
    assert len(first) <= LIMITS.writes
    assert ("orders" in seen.topics) is (len(first) == len(decision.changes))
    assert ("catalog" in keys(first)) is ("orders" in seen.topics)
    assert bool(seen.making) is ("orders" not in seen.topics)


def test_nor_is_it_torn_in_the_last_commit_of_several() -> None:
    """Its mark is removed in the same commit as the topic's key is written."""
    image = cluster(1)
    for left in range(LIMITS.writes - 4, LIMITS.writes + 2):
        decision = create(image, assignment={index: ids(1) for index in range(100 + left)})
        topic_id = decision.result.id
        making = Change(making_key(topic_id), Making(topic_id, "orders", 100 + left))
        half = image.apply([making, *decision.changes[:100]], image.revision)
        rest = [*decision.changes[100:], Change(making.key, None)]
        first = fitting(half, rest, LIMITS)
        last = {"topics/orders", "catalog", making.key}
        assert last <= set(keys(first)) or last.isdisjoint(keys(first))
        assert len(first) <= LIMITS.writes


def test_a_commit_has_no_more_compares_than_a_store_takes() -> None:
    """With many brokers and topics the compares run out before the writes."""
    image = cluster(*range(60))
    for number in range(50):
        replicas = tuple((number + step) % 60 for step in range(3))
        decision = create(image, f"t{number}", assignment={0: ids(*replicas)})
        image = after(image, decision)
    dead = image
    for number in range(0, 60, 3):  # one replica of each partition
        dead = dead.apply([Change(broker_key(BrokerId(number)), None)], dead.revision)
    changes = settle_leaders(dead, CONFIG).changes
    assert len(changes) == 50
    first = fitting(dead, changes, LIMITS)
    assert len(compares(dead, first)) <= LIMITS.compares
    assert 20 < len(first) < 50
    assert list(first) == list(changes[: len(first)])


def settled(image: ClusterImage, changes_max: int | None = None) -> ClusterImage:
    """The image after as many commits as it takes."""
    for _ in range(100):
        changes = settle_leaders(image, CONFIG, changes_max).changes
        if not changes:
            return image
        image = image.apply(fitting(image, changes, LIMITS), Revision(image.revision + 1))
    raise AssertionError("it is never settled")


def test_elections_that_do_not_fit_go_on_where_the_last_commit_ended() -> None:
    image = with_topic(cluster(1, 2), *[(1, 2)] * 300)
    dead = image.apply([Change(broker_key(BrokerId(1)), None)], image.revision)
    assert len(settle_leaders(dead, CONFIG).changes) == 300
    assert len(settle_leaders(dead, CONFIG, 256).changes) == 256
    image = settled(dead)
    assert settled(dead, 256) == image, "in as many commits, each decided about 256 at most"
    assert {partition.leader for partition in image.topics["orders"].partitions} == {2}
    assert {partition.leader_epoch for partition in image.topics["orders"].partitions} == {1}


def test_a_decision_about_a_partition_rests_on_its_topic_and_on_who_is_in_sync() -> None:
    image = gone(with_topic(cluster(1, 2, 3), (1, 2, 3)), 1)
    topic_id = image.topics["orders"].id
    key = partition_key(topic_id, 0)
    change = Change(key, image.topics["orders"].partitions[0])
    revisions = {one.key: one.mod_revision for one in compares(image, [change])}
    assert revisions == {
        key: image.mod_revision(key),
        "topics/orders": image.mod_revision("topics/orders"),
        "brokers/2": image.mod_revision("brokers/2"),
        "brokers/3": image.mod_revision("brokers/3"),
        "settings/brokers": NEVER,
    }
    assert list(revisions.values()).count(NEVER) == 1, "only the settings were never changed"


def test_a_new_partition_rests_on_its_announcement() -> None:
    image = cluster(1)
    decision = create(image, assignment={0: ids(1)})
    found = {one.key: one.mod_revision for one in compares(image, decision.changes[:1])}
    assert found[making_key(decision.result.id)] == NEVER


def test_only_keys_that_have_one_are_written_under_a_lease() -> None:
    image = cluster(1)
    changes = register_broker(image, broker(1)).changes
    leases = {broker_key(BrokerId(1)): LeaseId(7)}
    written = writes(changes, leases)
    assert [type(write) for write in written] == [Put, Delete]
    assert [write.lease for write in written if isinstance(write, Put)] == [7]


def test_settings_count_by_their_bytes() -> None:
    image = after(cluster(1), create(cluster(1), "a"))
    image = after(image, create(image, "b"))
    limits = LIMITS._replace(size_bytes=10_000)
    changes = [
        Change(f"topics/{name}", StoredTopic(name, image.topics[name].id, 1, {"x": "y" * 6000}))
        for name in ("a", "b")
    ]
    assert fits(image, changes[:1], limits)
    assert list(fitting(image, changes, limits)) == changes[:1]
    with pytest.raises(PolicyViolation, match="topics/a are too large"):
        fitting(image, changes, limits._replace(size_bytes=5000))


def test_settings_that_fit_into_no_commit_are_refused_before_anything_is_written() -> None:
    """Also if they come last, behind partitions that would go first."""
    image = cluster(1)
    assignment = {index: ids(1) for index in range(100)}
    config = {"retention.ms": "1" * 6000}
    changes = create(image, assignment=assignment).changes
    large = [
        replace(one, value=replace(one.value, config=config))
        if isinstance(one.value, StoredTopic)
        else one
        for one in changes
    ]
    with pytest.raises(PolicyViolation, match="topics/orders are too large"):
        fitting(image, large, LIMITS._replace(size_bytes=5000))
