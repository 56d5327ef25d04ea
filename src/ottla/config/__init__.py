"""Settings: parsed once, then valid. Names at the edge are Kafka's; an unknown one is an error.

Every setting is one dataclass field with its own name, kind and documentation, so the classes are
also the table that `ottla config list` prints and DescribeConfigs returns.
"""

from ottla.config.broker import BrokerConfig, shared_broker_settings
from ottla.config.group import GroupConfig
from ottla.config.setting import (
    INT32_MAX,
    INT64_MAX,
    Kind,
    Setting,
    flatten,
    format_value,
    parse_value,
    settings_of,
)
from ottla.config.topic import Durability, TimestampType, TopicConfig

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "BrokerConfig",
    "Durability",
    "GroupConfig",
    "Kind",
    "Setting",
    "TimestampType",
    "TopicConfig",
    "flatten",
    "format_value",
    "parse_value",
    "settings_of",
    "shared_broker_settings",
]
