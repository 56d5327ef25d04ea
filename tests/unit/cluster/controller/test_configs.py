"""Decisions on settings of topics, brokers and groups, and every refusal."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fakes.cluster_images import CONFIG, after, broker, cluster, create, with_topic
from ottla.cluster.controller.configs import (
    ConfigEdit,
    EditKind,
    alter_broker_config,
    alter_group_config,
    alter_topic_config,
    replace_broker_config,
    replace_group_config,
    replace_topic_config,
)
from ottla.cluster.store import Revision
from ottla.cluster.values import Change, broker_key
from ottla.config import BrokerConfig
from ottla.errors import (
    InvalidConfig,
    InvalidRequest,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from ottla.model import (
    BrokerId,
)


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


def test_subtracting_all_of_a_list_leaves_an_empty_one() -> None:
    assert edited({}, ConfigEdit(EditKind.SUBTRACT, "cleanup.policy", "delete")) == {
        "cleanup.policy": ""
    }


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
    for one, value in ((None, "5000"), (second, "6000")):
        edits = [ConfigEdit(EditKind.SET, "fetch.max.bytes", value)]
        image = after(image, alter_broker_config(image, edits, CONFIG, one))
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
        ("fetch.max.bytes", 7, "unknown broker 7"),
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


SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_settings_of_a_group_are_changed_replaced_and_gone_with_the_last() -> None:
    image = cluster(1)
    edits = [ConfigEdit(EditKind.SET, SESSION, "50000"), ConfigEdit(EditKind.SET, INTERVAL, "6000")]
    image = after(image, alter_group_config(image, "g", edits, CONFIG))
    assert image.group_configs == {"g": {SESSION: "50000", INTERVAL: "6000"}}
    image = after(image, replace_group_config(image, "g", {SESSION: "50000"}, CONFIG))
    assert image.group_configs == {"g": {SESSION: "50000"}}
    assert not replace_group_config(image, "g", {SESSION: "50000"}, CONFIG).changes
    delete = ConfigEdit(EditKind.DELETE, SESSION)
    image = after(image, alter_group_config(image, "g", [delete], CONFIG))
    assert image.group_configs == {}
    assert not alter_group_config(image, "g", [delete], CONFIG).changes


@pytest.mark.parametrize(
    ("name", "config", "refusal"),
    [
        ("g", {SESSION: "1"}, InvalidConfig),
        ("g", {"no.such": "1"}, InvalidConfig),
        ("g", {SESSION: None}, InvalidConfig),
        ("", {SESSION: "50000"}, InvalidRequest),
        ("x" * 1001, {SESSION: "50000"}, InvalidRequest),
    ],
)
def test_settings_of_a_group_that_are_refused(
    name: str, config: dict[str, str | None], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        replace_group_config(cluster(1), name, config, CONFIG)


def test_lists_are_the_only_settings_of_a_group_that_could_be_appended_to_and_there_are_none() -> (
    None
):
    with pytest.raises(InvalidConfig, match="is not a list"):
        alter_group_config(cluster(1), "g", [ConfigEdit(EditKind.APPEND, SESSION, "1")], CONFIG)


def test_no_more_groups_have_settings_than_there_may_be_groups() -> None:
    image, one = cluster(1), BrokerConfig(groups_max=1)
    image = after(image, replace_group_config(image, "a", {SESSION: "50000"}, one))
    image = after(image, replace_group_config(image, "a", {SESSION: "55000"}, one))
    with pytest.raises(PolicyViolation, match=r"max.groups"):
        replace_group_config(image, "b", {SESSION: "50000"}, one)


def test_records_may_wait_only_if_every_registered_broker_knows_them() -> None:
    old = replace(broker(2), features=frozenset())
    image = with_topic(cluster(1), (1,))
    mixed = image.apply([Change(broker_key(BrokerId(2)), old)], Revision(9))
    enable = ConfigEdit(EditKind.SET, "delay.enable", "true")
    assert alter_topic_config(image, "orders", [enable], CONFIG).changes
    for refused in (
        lambda: alter_topic_config(mixed, "orders", [enable], CONFIG),
        lambda: create(mixed, "new", config={"delay.enable": "true"}),
    ):
        with pytest.raises(InvalidConfig, match="broker 2 runs a version that does not know"):
            refused()
    assert alter_topic_config(
        mixed, "orders", [ConfigEdit(EditKind.SET, "delay.enable", "false")], CONFIG
    ).changes
    enabled = after(image, alter_topic_config(image, "orders", [enable], CONFIG))
    later = enabled.apply([Change(broker_key(BrokerId(2)), old)], Revision(9))
    other = ConfigEdit(EditKind.SET, "retention.ms", "5")
    assert alter_topic_config(later, "orders", [other], CONFIG).changes, "it is on already"
