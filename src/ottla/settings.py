"""The settings in force: what the broker was started with, and what was changed since."""

from collections.abc import Mapping

from ottla.config import BrokerConfig, GroupConfig, TopicConfig
from ottla.errors import InvalidConfig


class Settings:
    """Owner of the current settings: readers ask each time, for settings may change."""

    __slots__ = ("broker", "started_with")

    def __init__(self, started_with: BrokerConfig) -> None:
        self.started_with = started_with
        self.broker = started_with

    def change(self, shared: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over what was changed for all brokers, and on top of it for this one."""
        self.broker = self.started_with.override({**shared, **own})

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
