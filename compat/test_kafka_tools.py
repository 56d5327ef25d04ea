"""Kafka's own command line tools against Ottla: what administrators and their scripts run."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from compat import java
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka")]

_TIMEOUT_S: Final = 120
_TOOLS: Final = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
}


class Tools:
    """Runs one tool after the other; what it prints, standard error included."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, tool: str, *arguments: str) -> str:
        words = ("--bootstrap-server", self._address, *arguments)
        done = subprocess.run(
            java.command(_TOOLS[tool], *words),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with OttlaBroker(tmp_path_factory.mktemp("tools") / "data") as broker:
        yield Tools(broker.address)
        broker.end(signal.SIGTERM)


def test_a_topic_is_made_with_settings_that_have_no_effect_and_shows_them(tools: Tools) -> None:
    settings = ("flush.ms=1000", "remote.log.copy.disable=true", "preallocate=true")
    given = [word for one in settings for word in ("--config", one)]
    assert "Created topic t." in tools.run("topics", "--create", "--topic", "t", *given)
    described = tools.run("topics", "--describe", "--topic", "t")
    for one in settings:
        assert one in described
    entity = ("--entity-type", "topics", "--entity-name", "t")
    changed = tools.run("configs", "--alter", *entity, "--add-config", "file.delete.delay.ms=5")
    assert "Completed updating config for topic t." in changed
    shown = tools.run("configs", "--describe", *entity)
    assert "DYNAMIC_TOPIC_CONFIG:file.delete.delay.ms=5" in shown
    assert "DEFAULT_CONFIG:log.segment.delete.delay.ms=60000" in shown


def test_tiered_storage_and_unknown_settings_are_refused(tools: Tools) -> None:
    for setting, reason in (
        ("remote.storage.enable=true", "there is no tiered storage"),
        (
            "no.such.setting=1",
            "no.such.setting",
        ),  # the tool looks at this one, and the next, itself
        ("flush.ms=-1", "Value must be at least 0"),
    ):
        refused = tools.run("topics", "--create", "--topic", "refused", "--config", setting)
        assert "Error while executing topic command" in refused
        assert reason in refused
    assert "refused" not in tools.run("topics", "--list")


def test_a_group_has_settings(tools: Tools) -> None:
    entity = ("--entity-type", "groups", "--entity-name", "g")
    setting = "consumer.session.timeout.ms"
    changed = tools.run("configs", "--alter", *entity, "--add-config", f"{setting}=50000")
    assert "Completed updating config for group g." in changed
    shown = tools.run("configs", "--describe", "--entity-type", "groups")
    assert f"DYNAMIC_GROUP_CONFIG:{setting}=50000" in shown
    assert f"DEFAULT_CONFIG:group.{setting}=45000" in shown
    refused = tools.run("configs", "--alter", *entity, "--add-config", f"{setting}=1")
    assert "is not between 45000 and 60000" in refused
    deleted = tools.run("configs", "--alter", *entity, "--delete-config", setting)
    assert "Completed updating config for group g." in deleted


def test_there_are_no_users_quotas_or_rules(tools: Tools) -> None:
    assert tools.run("configs", "--describe", "--entity-type", "users").strip() == ""
    user = ("--entity-type", "users", "--entity-name", "u")
    refused = tools.run("configs", "--alter", *user, "--add-config", "producer_byte_rate=1000")
    assert "there are no quotas" in refused
    assert "SecurityDisabledException" in tools.run("acls", "--list")


def test_leaders_and_replicas_stay_where_they_are(tools: Tools, tmp_path: Path) -> None:
    tools.run("topics", "--create", "--topic", "stays")
    preferred = ("--election-type", "preferred")
    found = tools.run("leader-election", *preferred, "--topic", "stays", "--partition", "0")
    assert "Valid replica already elected for partitions stays-0" in found
    assert tools.run("leader-election", *preferred, "--all-topic-partitions").strip() == ""
    plan = tmp_path / "plan.json"
    move = {"topic": "stays", "partition": 0, "replicas": [0]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    file = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in tools.run("reassign-partitions", *file, "--execute")
    assert "stays-0 is completed" in tools.run("reassign-partitions", *file, "--verify")
    plan.write_text(json.dumps({"version": 1, "partitions": [{**move, "replicas": [7]}]}))
    refused = tools.run("reassign-partitions", *file, "--execute")
    assert "7" in refused
    assert "Successfully started" not in refused


def test_features_are_described(tools: Tools) -> None:
    described = tools.run("features", "describe")
    assert "group.version" in described
    assert "transaction.version" in described
