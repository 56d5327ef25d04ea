"""Settings of a group: the broker's are its defaults, and its limits hold."""

import pytest

from ottla.config import BrokerConfig, GroupConfig
from ottla.errors import InvalidConfig

BROKER = BrokerConfig.parse(
    {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.max.session.timeout.ms": "9000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.max.heartbeat.interval.ms": "5000",
        "group.consumer.heartbeat.interval.ms": "700",
    }
)


def test_what_a_group_does_not_say_comes_from_the_broker() -> None:
    config = GroupConfig.of({"consumer.session.timeout.ms": "2000"}, BROKER)
    assert config.consumer_session_timeout_ms == 2000
    assert config.consumer_heartbeat_interval_ms == 700
    assert GroupConfig.of({}, BROKER).consumer_session_timeout_ms == 6000


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("consumer.session.timeout.ms", "999", "1000 and 9000"),
        ("consumer.session.timeout.ms", "9001", "1000 and 9000"),
        ("consumer.heartbeat.interval.ms", "99", "100 and 5000"),
        ("consumer.heartbeat.interval.ms", "5001", "100 and 5000"),
    ],
)
def test_a_value_beyond_the_brokers_limits_is_refused(name: str, value: str, limits: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} = {value} is not between {limits}"):
        GroupConfig.of({name: value}, BROKER)


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    values = {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "1000"}
    with pytest.raises(InvalidConfig, match=r"must be less than consumer.session.timeout.ms"):
        GroupConfig.of(values, BROKER)
