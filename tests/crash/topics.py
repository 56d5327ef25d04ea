"""What a broker says about its topics, beside what its directory holds."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from crash.load import SILENT, STEADY

PATIENCE_S: Final = 30
_PARTITION_DIRECTORY: Final = re.compile(r"(.+)-(\d+)")


def admin_of(address: str) -> AdminClient:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 100,
        **STEADY,
    }
    return AdminClient(settings, logger=SILENT)


def create_topics(
    admin: AdminClient, names: Mapping[str, Mapping[str, str]], *, partitions: int = 1
) -> None:
    """Make topics by their settings; they exist on return."""
    wanted = [NewTopic(name, partitions, config=dict(names[name])) for name in names]
    for future in admin.create_topics(wanted).values():
        future.result(PATIENCE_S)


def partition_counts(admin: AdminClient) -> dict[str, int]:
    """Every topic of ours and how many partitions it has; all of them must be led.

    The groups' topic is not ours: it comes when librdkafka first looks for a coordinator.
    """
    counts = {}
    for name, topic in admin.list_topics(timeout=PATIENCE_S).topics.items():
        if name.startswith("__"):
            continue
        leaders = {partition.leader for partition in topic.partitions.values()}
        assert leaders == {0}, f"{name} has partitions without a leader"
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        counts[name] = len(topic.partitions)
    return counts


def setting_of(admin: AdminClient, topic: str, name: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource]).values()
    value: str | None = future.result(PATIENCE_S)[name].value
    return value


def partition_directories(data: Path) -> dict[str, int]:
    """How many partitions of which topics have a directory; nothing half made or half deleted."""
    counts: dict[str, int] = {}
    for directory in data.iterdir():
        if directory.is_dir():
            matched = _PARTITION_DIRECTORY.fullmatch(directory.name)
            assert matched is not None, f"{directory.name} was left behind"
            if matched[1].startswith("__"):
                continue
            counts[matched[1]] = counts.get(matched[1], 0) + 1
    return counts
