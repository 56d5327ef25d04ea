"""Settings of topics and groups are Kafka's: names, kinds, defaults and the values they take.

tests/golden/settings.json is what a broker of Apache Kafka said (tools/capture_settings.py).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypedDict

import pytest

from ottla.config import (
    BrokerConfig,
    GroupConfig,
    Kind,
    Setting,
    TopicConfig,
    format_value,
    settings_of,
)
from ottla.config.without_effect import WITHOUT_EFFECT
from ottla.errors import InvalidConfig


class Known(TypedDict):
    type: int
    default: str
    broker_names: list[str]
    accepted: list[str]


class Recorded(TypedDict):
    tried: list[str]
    topic: dict[str, Known]
    group: dict[str, Known]


RECORDED: Final[Recorded] = json.loads(
    (Path(__file__).parents[2] / "golden" / "settings.json").read_text()
)
TRIED: Final = frozenset(RECORDED["tried"])
KAFKA: Final[Mapping[str, Known]] = RECORDED["topic"] | RECORDED["group"]
TYPES: Final = {1: "boolean", 2: "string", 3: "int", 5: "long", 6: "double", 7: "list"}
OWN_LIMITS: Final = {"retention.bytes", "segment.bytes", "share.delivery.count.limit"}
OWN_DEFAULTS: Final = {"retention.ms"}  # two weeks instead of one
ROWS: Final[Mapping[str, tuple[str, Setting]]] = {
    row.name: (format_value(getattr(config, field)), row)
    for config in (TopicConfig(), GroupConfig())
    for field, row in settings_of(type(config))
}


def refused(name: str) -> set[str]:
    """The values that a setting does not take, of all that Kafka's were tried with."""
    texts = set()
    for text in TRIED:
        try:
            if name in RECORDED["topic"]:
                TopicConfig().override({name: text})
            else:
                GroupConfig.of({name: text}, BrokerConfig())
        except InvalidConfig:
            texts.add(text)
    return texts


@pytest.mark.parametrize("name", KAFKA)
def test_a_setting_of_kafka_has_its_kind_and_default(name: str) -> None:
    default, row = ROWS[name]
    assert row.kind is Kind(TYPES[KAFKA[name]["type"]])
    if name not in OWN_DEFAULTS:
        assert default == KAFKA[name]["default"]


@pytest.mark.parametrize("name", KAFKA)
def test_a_setting_has_the_default_of_the_same_broker_setting(name: str) -> None:
    if names := KAFKA[name]["broker_names"]:
        assert ROWS[name][1].broker_name in names


@pytest.mark.parametrize("name", sorted(KAFKA.keys() - OWN_LIMITS))
def test_a_setting_takes_the_values_that_kafka_takes(name: str) -> None:
    assert refused(name) == TRIED - set(KAFKA[name]["accepted"])


def test_segments_may_be_smaller_than_kafkas_and_no_size_limit_is_minus_one_alone() -> None:
    accepted = TRIED - refused("segment.bytes")
    assert accepted >= set(KAFKA["segment.bytes"]["accepted"])
    assert min(map(int, accepted)) == 1024
    accepted = TRIED - refused("retention.bytes")
    assert set(KAFKA["retention.bytes"]["accepted"]) >= accepted
    assert min(map(int, accepted)) == -1


def test_a_share_group_may_have_no_limit_of_deliveries() -> None:
    accepted = TRIED - refused("share.delivery.count.limit")
    assert accepted == {*KAFKA["share.delivery.count.limit"]["accepted"], "0"}


def test_a_name_that_kafka_does_not_know_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match=r"unknown topic setting: remote.copy.disable"):
        TopicConfig().override({"remote.copy.disable": "true"})
    with pytest.raises(InvalidConfig, match=r"unknown group setting: retention.ms"):
        GroupConfig.of({"retention.ms": "1"}, BrokerConfig())


def test_every_reason_for_no_effect_belongs_to_a_setting_and_is_shown_with_it() -> None:
    for name, reason in WITHOUT_EFFECT.items():
        _, row = ROWS[name]
        assert not row.has_effect
        assert row.full_doc.endswith(reason)
    assert ROWS["retention.ms"][1].full_doc == ROWS["retention.ms"][1].doc
