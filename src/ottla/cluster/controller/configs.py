"""Decisions on settings of topics and brokers."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from ottla.cluster.controller.decision import Decision, find_topic, topic_changes
from ottla.cluster.controller.leaders import replication_rules, settle_leaders, settled_partitions
from ottla.cluster.controller.partition_count import with_active_count
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import (
    DELAY_FEATURE,
    Change,
    StoredSettings,
    broker_settings_key,
    group_settings_key,
)
from ottla.config import (
    BrokerConfig,
    GroupConfig,
    Kind,
    Setting,
    TopicConfig,
    format_value,
    settings_of,
    shared_broker_settings,
)
from ottla.config.topic import DELAY_ENABLE
from ottla.errors import (
    InvalidConfig,
    InvalidRequest,
    PolicyViolation,
)
from ottla.model import (
    BrokerId,
)

GROUP_ID_LENGTH_MAX: Final = 1000  # of a group with settings: it is part of a key of the store
FIXED_SETTINGS: Final = frozenset({"node.id", "advertised.listeners"})  # shown, not changed


class EditKind(IntEnum):
    """The operations of IncrementalAlterConfigs, with their numbers on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """An operation of IncrementalAlterConfigs."""

    kind: EditKind
    name: str
    value: str | None = None


def alter_topic_config(
    image: ClusterImage, name: str, edits: Sequence[ConfigEdit], defaults: BrokerConfig
) -> Decision[None]:
    """Change some settings of a topic and keep the others."""
    config = _edit(find_topic(image, name).config, edits, _topic_lists(defaults))
    return replace_topic_config(image, name, config, defaults)


def replace_topic_config(
    image: ClusterImage, name: str, config: Mapping[str, str | None], defaults: BrokerConfig
) -> Decision[None]:
    """Replace all settings of a topic; one that is not named returns to its default."""
    topic = find_topic(image, name)
    given = values_given(config)
    if DELAY_ENABLE in topic.config:
        given.setdefault(DELAY_ENABLE, "false")  # what waits is still to be hidden and delivered
    before = defaults.topic.override(topic.config)
    if checked_topic_config(given, defaults).delay_enable and not before.delay_enable:
        check_delay_known(image)
    changed = with_active_count(topic, replace(topic, config=given))
    # Leaders are elected at once, because the change may have allowed one that was not.
    rules = replication_rules(image.broker_config, defaults)
    settled = settled_partitions(image, changed, rules)
    return Decision((*topic_changes(image, changed), *settled), None)


def check_delay_known(image: ClusterImage) -> None:
    """Refuse records that wait unless every registered broker knows them.

    One that does not would show them to consumers, and deliver none.
    """
    for broker in sorted(image.registered):
        if DELAY_FEATURE not in image.registered[broker].features:
            raise InvalidConfig(
                f"broker {broker} runs a version that does not know {DELAY_ENABLE}: upgrade all"
                " brokers first"
            )


def checked_topic_config(given: Mapping[str, str], defaults: BrokerConfig) -> TopicConfig:
    """The settings of a topic, or `InvalidConfig` if they do not go together."""
    config = defaults.topic.override(given)
    if config.may_wait and "compact" in config.cleanup_policy:
        raise InvalidConfig(
            "delay.enable excludes compaction, which would drop records that wait: set"
            " cleanup.policy=delete, or leave delay.enable out; it stays for a topic's life"
        )
    return config


def alter_broker_config(
    image: ClusterImage,
    edits: Sequence[ConfigEdit],
    defaults: BrokerConfig,
    broker: BrokerId | None = None,
) -> Decision[None]:
    """Change some settings of one broker, or of all of them, and keep the others."""
    config = _edit(image.config_of(broker), edits, _broker_lists(defaults))
    return replace_broker_config(image, config, defaults, broker)


def replace_broker_config(
    image: ClusterImage,
    config: Mapping[str, str | None],
    defaults: BrokerConfig,
    broker: BrokerId | None = None,
) -> Decision[None]:
    """Replace the changed settings of one broker, or of all; those at its start stay."""
    if broker is not None and broker not in image.brokers:
        raise InvalidRequest(f"unknown broker {broker}: it is not registered in this cluster")
    given = values_given(config)
    _check_changeable(given.keys(), broker)
    BrokerConfig.parse(given)
    changes: tuple[Change, ...] = ()
    if given != image.config_of(broker):
        key = broker_settings_key(broker)
        changes = (Change(key, StoredSettings(given) if given or broker is None else None),)
    settled = settle_leaders(image.apply(changes, image.revision), defaults)
    return Decision((*changes, *settled.changes), None)


def alter_group_config(
    image: ClusterImage, group_id: str, edits: Sequence[ConfigEdit], defaults: BrokerConfig
) -> Decision[None]:
    """Change some settings of a group and keep the others. The group need not exist."""
    config = _edit(image.group_configs.get(group_id, {}), edits, {})
    return replace_group_config(image, group_id, config, defaults)


def replace_group_config(
    image: ClusterImage, group_id: str, config: Mapping[str, str | None], defaults: BrokerConfig
) -> Decision[None]:
    """Replace all settings of a group; one that is not named returns to its default."""
    if not 0 < len(group_id) <= GROUP_ID_LENGTH_MAX:
        raise InvalidRequest(
            f"settings need a group with a name of 1 to {GROUP_ID_LENGTH_MAX} characters"
        )
    given = values_given(config)
    topic = GroupConfig.of(given, defaults).dead_letter_topic
    if topic and not topic.startswith(defaults.dead_letter_topic_prefix):
        raise InvalidConfig(
            f"errors.deadletterqueue.topic.name = {topic} must begin with"
            f" {defaults.dead_letter_topic_prefix!r}, which is"
            " errors.deadletterqueue.topic.name.prefix of the brokers"
        )
    if given == image.group_configs.get(group_id, {}):
        return Decision((), None)
    is_new = group_id not in image.group_configs
    if is_new and len(image.group_configs) >= defaults.groups_max:
        raise PolicyViolation(
            f"{len(image.group_configs)} groups have settings, and max.groups allows no more:"
            " delete those of others first"
        )
    change = Change(group_settings_key(group_id), StoredSettings(given) if given else None)
    return Decision((change,), None)


def _check_changeable(names: Collection[str], broker: BrokerId | None) -> None:
    """Refuse settings fixed at a broker's start, and shared ones for a single broker."""
    if fixed := sorted(FIXED_SETTINGS.intersection(names)):
        raise InvalidRequest(
            f"{', '.join(fixed)} cannot be changed while a broker runs: set it in its file, restart"
        )
    if broker is not None and (shared := sorted(shared_broker_settings().intersection(names))):
        raise InvalidRequest(
            f"all brokers share {', '.join(shared)}: change it for all of them (an empty name;"
            f" `ottla config set broker all`), not for broker {broker}"
        )


def values_given(config: Mapping[str, str | None]) -> dict[str, str]:
    """`config` without nulls, which are refused: CreateTopics and AlterConfigs set values."""
    given = {name: value for name, value in config.items() if value is not None}
    if missing := sorted(config.keys() - given.keys()):
        raise InvalidConfig(
            f"no value given for {', '.join(missing)}: give one, or leave the setting out to get"
            " its default"
        )
    return given


def _edit(
    config: Mapping[str, str], edits: Sequence[ConfigEdit], lists: Mapping[str, str]
) -> dict[str, str]:
    """`config` after all edits; `lists` maps each list setting to its default."""
    named = Counter(edit.name for edit in edits)
    if len(named) != len(edits):
        twice = sorted(name for name, times in named.items() if times > 1)
        raise InvalidRequest(f"{', '.join(twice)} named twice: send one change per setting")
    edited = dict(config)
    for edit in edits:
        if edit.kind is EditKind.DELETE:
            edited.pop(edit.name, None)
        else:
            edited[edit.name] = _edited_value(edited.get(edit.name), edit, lists)
    return edited


def _edited_value(current: str | None, edit: ConfigEdit, lists: Mapping[str, str]) -> str:
    if edit.value is None:
        raise InvalidRequest(f"no value given for {edit.name}: give one, or delete the setting")
    if edit.kind is EditKind.SET:
        return edit.value
    if edit.name not in lists:
        raise InvalidConfig(
            f"{edit.name} is not a list, so nothing can be appended or subtracted: set it instead"
        )
    items = _split(lists[edit.name] if current is None else current)
    named = _split(edit.value)
    if edit.kind is EditKind.APPEND:
        return ",".join([*items, *(item for item in named if item not in items)])
    return ",".join(item for item in items if item not in named)


def _split(text: str) -> list[str]:
    return [item for item in map(str.strip, text.split(",")) if item]


def _topic_lists(defaults: BrokerConfig) -> dict[str, str]:
    return {row.name: value for row, value in _list_settings(defaults.topic)}


def _broker_lists(defaults: BrokerConfig) -> dict[str, str]:
    own = {row.name: value for row, value in _list_settings(defaults)}
    topic = {
        row.broker_name: value
        for row, value in _list_settings(defaults.topic)
        if row.broker_name is not None
    }
    return own | topic


def _list_settings(config: TopicConfig | BrokerConfig) -> Iterable[tuple[Setting, str]]:
    for name, row in settings_of(type(config)):
        if row.kind is Kind.LIST:
            yield row, format_value(getattr(config, name))
