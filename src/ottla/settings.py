"""The settings in force: what the broker was started with, and what was changed since."""

from collections.abc import Mapping
from typing import Final

from ottla.config import BrokerConfig, GroupConfig, TopicConfig, format_value, settings_of
from ottla.errors import InvalidConfig

_BROKER: Final = tuple(settings_of(BrokerConfig))
_TOPIC: Final = tuple(settings_of(TopicConfig))


class Settings:
    """Owner of the current settings: readers ask each time, for settings may change."""

    __slots__ = ("broker", "started_with")

    def __init__(self, started_with: BrokerConfig) -> None:
        self.started_with = started_with
        self.broker = started_with

    def change(self, shared: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over what was changed for all brokers, and on top of it for this one."""
        self.broker = self.started_with.override({**shared, **own})

    def changed(self) -> dict[str, str]:
        """The settings in force that differ from their defaults, by dotted names."""
        found: dict[str, str] = {}
        topic = [(self.broker.topic, TopicConfig(), name, row.broker_name) for name, row in _TOPIC]
        own = [(self.broker, BrokerConfig(), name, row.name) for name, row in _BROKER]
        for config, defaults, name, dotted in (*own, *topic):
            value = getattr(config, name)
            if dotted is not None and value != getattr(defaults, name):
                found[dotted] = format_value(value)
        return dict(sorted(found.items()))

    def topic(self, raw: Mapping[str, str]) -> TopicConfig:
        """A topic's settings: its own over the broker's.

        They were checked when they were set. One that no longer parses, after a downgrade say,
        must not keep a partition from being served.
        """
        try:
            return self.broker.topic.override(raw)
        except InvalidConfig:
            return self.broker.topic

    def group(self, raw: Mapping[str, str]) -> GroupConfig:
        """A group's settings: its own over the broker's.

        They were checked when they were set. If a limit of the broker has changed since, and they
        are beyond it, the broker's own count.
        """
        try:
            return GroupConfig.of(raw, self.broker)
        except InvalidConfig:
            return GroupConfig.of({}, self.broker)
