"""Settings of a topic: their defaults, and the values that they take."""

import pytest

from ottla.config import Durability, TopicConfig, format_value
from ottla.errors import InvalidConfig


def test_two_weeks_are_kept_and_fsync_is_promised_unless_said_otherwise() -> None:
    config = TopicConfig()
    assert config.retention_ms == 14 * 24 * 3_600_000
    assert config.durability is Durability.FSYNC


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("segment.bytes", str(2**31)),
        ("durability", "maybe"),
        ("cleanup.policy", "burn"),
        ("cleanup.policy", "compact,burn"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("unclean.leader.election.enable", "yes"),
    ],
)
def test_a_value_that_does_not_work_is_an_error_that_says_what_does(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match="allowed is"):
        TopicConfig().override({name: text})


def test_a_policy_may_be_both_in_any_order() -> None:
    for text in ("compact,delete", "delete, compact"):
        config = TopicConfig().override({"cleanup.policy": text})
        assert config.cleanup_policy == ("compact", "delete")
        assert format_value(config.cleanup_policy) == "compact,delete"


def test_a_policy_may_be_none() -> None:
    assert TopicConfig().override({"cleanup.policy": ""}).cleanup_policy == ()


def test_tiered_storage_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidConfig, match="there is no tiered storage: leave it out"):
        TopicConfig().override({"remote.storage.enable": "true"})


def test_throttled_replicas_keep_their_text() -> None:
    name = "leader.replication.throttled.replicas"
    for text in ("", "*", "0:1,1:2"):
        config = TopicConfig().override({name: text})
        assert format_value(config.leader_throttled_replicas) == text
