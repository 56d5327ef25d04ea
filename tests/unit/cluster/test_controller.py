"""What the cluster decides, and every way in which it says no."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest

from ottla.cluster.controller import (
    ConfigEdit,
    Decision,
    EditKind,
    FoundPartition,
    IneligibleReplica,
    NewTopic,
    StalePartitionEpoch,
    add_partitions,
    adopt_partition,
    alter_broker_config,
    alter_isr,
    alter_topic_config,
    broker_gone,
    create_topic,
    decide_each,
    delete_topic,
    logs_removed,
    raise_epochs,
    register_broker,
    replace_broker_config,
    replace_topic_config,
    settle_leaders,
)
from ottla.cluster.image import (
    BrokerImage,
    Change,
    ClusterImage,
    PartitionImage,
    Tombstone,
    TopicImage,
    broker_key,
)
from ottla.cluster.store import Revision
from ottla.config import BrokerConfig
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    NotLeader,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.model import (
    NO_UUID,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    TopicPartition,
    Uuid,
    format_uuid,
)

Answer = TypeVar("Answer")

CONFIG = BrokerConfig()
ORDERS_0 = TopicPartition("orders", 0)


def numbered_ids() -> Callable[[], Uuid]:
    numbers = count(1)
    return lambda: Uuid(next(numbers).to_bytes(16, "big"))


def broker(broker_id: int) -> BrokerImage:
    return BrokerImage(BrokerId(broker_id), Endpoint("localhost", 9000 + broker_id))


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def cluster(*brokers: int) -> ClusterImage:
    return ClusterImage().apply(
        [Change(broker_key(BrokerId(number)), broker(number)) for number in brokers], Revision(1)
    )


def after(image: ClusterImage, decision: Decision[Any]) -> ClusterImage:
    return image.apply(decision.changes, Revision(image.revision + 1))


def create(
    image: ClusterImage,
    name: str = "orders",
    *,
    defaults: BrokerConfig = CONFIG,
    new_id: Callable[[], Uuid] | None = None,
    **wanted: Any,
) -> Decision[TopicImage]:
    number = len(image.topics) * 1000
    fresh = (Uuid((number + step).to_bytes(16, "big")) for step in count(1))
    topic = NewTopic(name=name, **wanted)
    return create_topic(image, topic, defaults, new_id=new_id or partial(next, fresh), start=0)


def with_topic(image: ClusterImage, *assignments: tuple[int, ...], **wanted: Any) -> ClusterImage:
    """The cluster with a topic `orders` whose partitions have these replicas."""
    assignment = {index: ids(*replicas) for index, replicas in enumerate(assignments)}
    return after(image, create(image, assignment=assignment, **wanted))


def orders_0(image: ClusterImage) -> PartitionImage:
    return image.topics["orders"].partitions[0]


# Creating


def test_a_topic_gets_what_it_asks_for() -> None:
    image = cluster(1, 2, 3)
    decision = create(
        image, partition_count=3, replication_factor=2, config={"retention.ms": "1000"}
    )
    topic = after(image, decision).topics["orders"]
    assert topic == decision.answer
    assert topic.config == {"retention.ms": "1000"}
    assert [partition.replicas for partition in topic.partitions] == [(1, 2), (2, 3), (3, 1)]
    assert topic.partitions[0] == PartitionImage(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        replicas=ids(1, 2),
        isr=ids(1, 2),
        partition_epoch=0,
    )


def test_minus_one_asks_for_the_brokers_defaults() -> None:
    defaults = BrokerConfig(partitions_default=4, default_replication_factor=2)
    topic = create(cluster(1, 2), defaults=defaults).answer
    assert len(topic.partitions) == 4
    assert all(len(partition.replicas) == 2 for partition in topic.partitions)


def test_a_topic_can_be_found_by_its_id_until_it_is_deleted() -> None:
    image = cluster(1)
    created = create(image)
    image = after(image, created)
    assert image.topic_by_id(created.answer.id) == created.answer
    deleted = delete_topic(image, "orders", CONFIG)
    assert deleted.answer == created.answer
    image = after(image, deleted)
    assert image.topic_by_id(created.answer.id) is None
    assert image.topics == {}


def test_ids_that_are_zero_taken_or_look_like_an_option_are_drawn_again() -> None:
    image = after(cluster(1), create(cluster(1), new_id=lambda: Uuid(b"\x01" * 16)))
    drawn = iter([NO_UUID, Uuid(b"\x01" * 16), Uuid(b"\xf8" * 16), Uuid(b"\x02" * 16)])
    assert create(image, "other", new_id=lambda: next(drawn)).answer.id == b"\x02" * 16


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
    assert create(image, new + "x").answer.name == new + "x"


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
    with pytest.raises(InvalidReplicationFactor, match="start more brokers, or ask for fewer"):
        create(cluster(*brokers), replication_factor=factor)


def test_more_partitions_than_the_limit_are_refused_before_they_cost_anything() -> None:
    defaults = BrokerConfig(partitions_max=10)
    image = after(cluster(1), create(cluster(1), defaults=defaults, partition_count=9))
    assert create(image, "last", defaults=defaults).answer.partitions
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
        ({0: ids(1, 1)}, "names one twice"),
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
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'orders'"):
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
def test_partitions_cannot_be_taken_away(total: int) -> None:
    image = with_topic(cluster(1), (1,), (1,))
    with pytest.raises(InvalidPartitions, match=f"ask for 3 or more, not {total}"):
        add_partitions(image, "orders", total, CONFIG, start=0)


def test_adding_partitions_to_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition):
        add_partitions(cluster(1), "orders", 2, CONFIG, start=0)


def test_adding_partitions_needs_brokers_for_all_replicas() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    image = after(image, broker_gone(image, BrokerId(2), CONFIG))
    with pytest.raises(InvalidReplicationFactor, match="2 replicas need as many brokers"):
        add_partitions(image, "orders", 2, CONFIG, start=0)


def test_added_partitions_count_towards_the_limit() -> None:
    image = with_topic(cluster(1), (1,))
    with pytest.raises(PolicyViolation, match=r"max.partitions allows 100000"):
        add_partitions(image, "orders", 2**31 - 1, CONFIG, start=0)


def test_added_partitions_can_be_assigned_by_hand() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    grown = add_partitions(image, "orders", 2, CONFIG, start=0, assignments=[ids(2, 1)]).answer
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


# Settings


def edited(config: Mapping[str, str], *edits: ConfigEdit) -> Mapping[str, str]:
    image = with_topic(cluster(1), (1,), config=config)
    return after(image, alter_topic_config(image, "orders", edits, CONFIG)).topics["orders"].config


def test_single_settings_are_set_and_deleted_and_the_others_stay() -> None:
    before = {"retention.ms": "1", "segment.ms": "2"}
    assert edited(
        before,
        ConfigEdit(EditKind.SET, "retention.bytes", "3"),
        ConfigEdit(EditKind.SET, "segment.ms", "4"),
        ConfigEdit(EditKind.DELETE, "retention.ms"),
    ) == {"retention.bytes": "3", "segment.ms": "4"}


def test_appending_to_a_list_begins_with_its_default_and_adds_nothing_twice() -> None:
    assert edited({}, ConfigEdit(EditKind.APPEND, "cleanup.policy", "delete")) == {
        "cleanup.policy": "delete"
    }


def test_a_policy_is_added_and_taken_away() -> None:
    both = {"cleanup.policy": "delete,compact"}
    assert edited({}, ConfigEdit(EditKind.APPEND, "cleanup.policy", "compact")) == both
    assert edited(both, ConfigEdit(EditKind.SUBTRACT, "cleanup.policy", "delete")) == {
        "cleanup.policy": "compact"
    }


def test_subtracting_all_of_a_list_is_refused_as_a_value() -> None:
    with pytest.raises(InvalidConfig, match=r"cleanup.policy = ''"):
        edited({}, ConfigEdit(EditKind.SUBTRACT, "cleanup.policy", "delete"))


def test_subtracting_what_is_not_in_a_list_leaves_it() -> None:
    assert edited({}, ConfigEdit(EditKind.SUBTRACT, "cleanup.policy", "other")) == {
        "cleanup.policy": "delete"
    }


@pytest.mark.parametrize("kind", [EditKind.APPEND, EditKind.SUBTRACT])
def test_only_lists_can_be_appended_to_or_subtracted_from(kind: EditKind) -> None:
    with pytest.raises(InvalidConfig, match=r"retention.ms is not a list.*set it instead"):
        edited({}, ConfigEdit(kind, "retention.ms", "1"))


def test_one_setting_named_twice_is_refused() -> None:
    edit = ConfigEdit(EditKind.SET, "retention.ms", "1")
    with pytest.raises(InvalidRequest, match=r"retention.ms named twice"):
        edited({}, edit, edit)


def test_setting_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="give one, or delete the setting"):
        edited({}, ConfigEdit(EditKind.SET, "retention.ms", None))


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"retention.ms = '-7'"):
        edited({}, ConfigEdit(EditKind.SET, "retention.ms", "-7"))


def test_replacing_settings_forgets_the_ones_that_are_not_named() -> None:
    image = with_topic(cluster(1), (1,), config={"retention.ms": "1"})
    decision = replace_topic_config(image, "orders", {"segment.ms": "2"}, CONFIG)
    assert after(image, decision).topics["orders"].config == {"segment.ms": "2"}
    with pytest.raises(InvalidConfig, match="no value given"):
        replace_topic_config(image, "orders", {"segment.ms": None}, CONFIG)


def test_settings_of_what_does_not_exist_are_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition):
        alter_topic_config(cluster(1), "orders", [], CONFIG)
    with pytest.raises(UnknownTopicOrPartition):
        replace_topic_config(cluster(1), "orders", {}, CONFIG)


def test_settings_that_are_so_already_change_nothing() -> None:
    image = with_topic(cluster(1), (1,), config={"retention.ms": "1"})
    assert replace_topic_config(image, "orders", {"retention.ms": "1"}, CONFIG).changes == ()
    assert replace_broker_config(image, {}, CONFIG).changes == ()


def test_broker_settings_are_altered_and_replaced_under_their_broker_names() -> None:
    image = cluster(1)
    edits = [ConfigEdit(EditKind.SET, "log.retention.ms", "5")]
    image = after(image, alter_broker_config(image, edits, CONFIG))
    edits = [ConfigEdit(EditKind.APPEND, "log.cleanup.policy", "delete")]
    image = after(image, alter_broker_config(image, edits, CONFIG))
    assert image.broker_config == {"log.retention.ms": "5", "log.cleanup.policy": "delete"}
    image = after(image, replace_broker_config(image, {"num.partitions": "3"}, CONFIG))
    assert image.broker_config == {"num.partitions": "3"}


def test_one_broker_can_differ_from_the_others() -> None:
    image, second = cluster(1, 2), BrokerId(2)
    for broker, value in ((None, "5000"), (second, "6000")):
        edits = [ConfigEdit(EditKind.SET, "fetch.max.bytes", value)]
        image = after(image, alter_broker_config(image, edits, CONFIG, broker))
    assert image.config_of(None) == {"fetch.max.bytes": "5000"}
    assert image.config_of(BrokerId(1)) == {}
    assert image.config_of(second) == {"fetch.max.bytes": "6000"}
    edits = [ConfigEdit(EditKind.DELETE, "fetch.max.bytes", None)]
    image = after(image, alter_broker_config(image, edits, CONFIG, second))
    assert image.config_of(second) == {}
    assert image.own_configs == {}


@pytest.mark.parametrize(
    ("name", "broker", "said"),
    [
        ("num.partitions", 1, "all brokers share num.partitions"),
        ("min.insync.replicas", 1, "all brokers share"),
        ("node.id", 1, "cannot be changed while a broker runs"),
        ("advertised.listeners", None, "cannot be changed"),
        ("fetch.max.bytes", 7, "no broker 7"),
    ],
)
def test_what_one_broker_cannot_have_for_itself_is_refused(
    name: str, broker: int | None, said: str
) -> None:
    edits = [ConfigEdit(EditKind.SET, name, "3000")]
    with pytest.raises(InvalidRequest, match=said):
        alter_broker_config(cluster(1), edits, CONFIG, None if broker is None else BrokerId(broker))


def test_unknown_broker_settings_are_refused() -> None:
    edits = [ConfigEdit(EditKind.SET, "retention.ms", "5")]
    with pytest.raises(InvalidConfig, match="unknown broker setting"):
        alter_broker_config(cluster(1), edits, CONFIG)


# Brokers and leaders


def gone(image: ClusterImage, *brokers: int) -> ClusterImage:
    for number in brokers:
        image = after(image, broker_gone(image, BrokerId(number), CONFIG))
    return image


def back(image: ClusterImage, number: int) -> ClusterImage:
    return after(image, register_broker(image, broker(number), CONFIG))


def test_a_brokers_epoch_is_the_revision_of_its_registration() -> None:
    image = back(cluster(1), 2)
    assert image.brokers[BrokerId(2)] == replace(broker(2), epoch=image.revision)


def test_when_the_leader_goes_the_next_replica_in_sync_leads() -> None:
    image = gone(with_topic(cluster(1, 2, 3), (1, 2, 3)), 1)
    assert orders_0(image) == PartitionImage(
        leader=BrokerId(2),
        leader_epoch=LeaderEpoch(1),
        replicas=ids(1, 2, 3),
        isr=ids(2, 3),
        partition_epoch=1,
    )


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


def test_a_broker_that_is_not_known_can_go_without_a_change() -> None:
    image = with_topic(cluster(1), (1,))
    assert broker_gone(image, BrokerId(7), CONFIG).changes == ()


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
    return alter_isr(
        image,
        ORDERS_0,
        isr,
        leader=seen.get("leader", partition.leader),
        leader_epoch=LeaderEpoch(seen.get("leader_epoch", partition.leader_epoch)),
        partition_epoch=seen.get("partition_epoch", partition.partition_epoch),
    )


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
    for name, partition in (("orders", 1), ("orders", -1), ("other", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            alter_isr(
                with_topic(cluster(1), (1,)),
                TopicPartition(name, partition),
                ids(1),
                leader=BrokerId(1),
                leader_epoch=LeaderEpoch(0),
                partition_epoch=0,
            )


# Several at once


def test_many_wishes_are_one_decision_in_which_each_sees_the_ones_before() -> None:
    image = cluster(1)
    new_id = numbered_ids()

    def creation(name: str) -> Callable[[ClusterImage], Decision[TopicImage]]:
        return lambda image: create_topic(
            image, NewTopic(name=name), CONFIG, new_id=new_id, start=0
        )

    wishes = [creation(name) for name in ("a", "b", "a", "../c")]
    decision = decide_each(image, wishes)
    assert [type(answer) for answer in decision.answer] == [
        TopicImage,
        TopicImage,
        TopicAlreadyExists,
        InvalidTopic,
    ]
    assert len({change.key for change in decision.changes}) == len(decision.changes)
    assert list(after(image, decision).topics) == ["a", "b"]


# Tombstones, and logs that were lost


def test_a_deleted_topic_leaves_a_tombstone_in_the_same_commit() -> None:
    image = with_topic(cluster(1, 2, 3), (1, 2), (2, 3))
    topic = image.topics["orders"]
    decision = delete_topic(image, "orders", CONFIG)
    assert [change.key for change in decision.changes] == [
        "topics/orders",
        f"deleted/{format_uuid(topic.id)}",
    ]
    gone = after(image, decision)
    assert not gone.topics
    assert gone.tombstones == {topic.id: Tombstone(topic.id, "orders", 2, ids(1, 2, 3))}


def test_the_last_broker_without_logs_takes_the_tombstone_away() -> None:
    image = with_topic(cluster(1, 2), (1, 2))
    topic_id = image.topics["orders"].id
    image = after(image, delete_topic(image, "orders", CONFIG))
    image = after(image, logs_removed(image, BrokerId(1), [topic_id]))
    assert image.tombstones[topic_id].brokers == ids(2)
    assert logs_removed(image, BrokerId(1), [topic_id]).changes == ()
    image = after(image, logs_removed(image, BrokerId(2), [topic_id]))
    assert image.tombstones == {}
    assert image.mod_revisions.keys() == {"brokers/1", "brokers/2", "catalog"}


def test_the_id_of_a_deleted_topic_is_not_given_out_again() -> None:
    image = with_topic(cluster(1), (1,))
    topic_id = image.topics["orders"].id
    image = after(image, delete_topic(image, "orders", CONFIG))
    drawn = iter([topic_id, Uuid(bytes([9] * 16))])
    assert create(image, new_id=partial(next, drawn)).answer.id == bytes([9] * 16)


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
    topic = adopt_partition(cluster(1), found()).answer
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
    with pytest.raises(InvalidRequest, match="is called 'orders'"):
        adopt_partition(image, found("other", topic_id=topic_id))
    gone = after(image, delete_topic(image, "orders", CONFIG))
    with pytest.raises(InvalidRequest, match="was deleted"):
        adopt_partition(gone, found(topic_id=topic_id))


def test_leader_epochs_are_raised_to_what_the_logs_have_seen() -> None:
    image = with_topic(cluster(1), (1,), (1,))
    seen = {
        TopicPartition("orders", 0): LeaderEpoch(4),
        TopicPartition("orders", 1): LeaderEpoch(-1),
    }
    raised = after(image, raise_epochs(image, seen))
    assert [one.leader_epoch for one in raised.topics["orders"].partitions] == [4, 0]
    assert raise_epochs(raised, seen).changes == ()
