"""`ottla topic` against a real broker."""

import json

from cli.processes import Ottla


def test_a_topic_is_made_listed_described_and_deleted(ottla: Ottla) -> None:
    made = ottla("topic", "create", "life", "--partitions", "3", "--config", "retention.ms=60000")
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "topic life created\n")

    listed = [json.loads(line) for line in ottla("topic", "list", "--json").stdout.splitlines()]
    assert {"name": "life", "partitions": 3, "replicas": 1} in listed

    ottla("produce", "life", "--partition", "1", stdin="one\ntwo\n")
    (described,) = ottla("topic", "describe", "life", "--json").stdout.splitlines()
    topic = json.loads(described)
    assert topic["name"] == "life"
    assert topic["settings"] == {"retention.ms": "60000"}
    ends = [(part["start_offset"], part["end_offset"]) for part in topic["partitions"]]
    assert ends == [(0, 0), (0, 2), (0, 0)]
    assert topic["partitions"][1]["size_bytes"] > 0
    assert topic["partitions"][0]["leader"] == topic["partitions"][0]["isr"][0]

    deleted = ottla("topic", "delete", "life")
    assert (deleted.returncode, deleted.stderr) == (0, "topic life deleted\n")
    left = [
        json.loads(line)["name"] for line in ottla("topic", "list", "--json").stdout.splitlines()
    ]
    assert "life" not in left


def test_people_get_tables(ottla: Ottla) -> None:
    ottla("topic", "create", "tables", "--config", "durability=replicated")
    heading, *rows = ottla("topic", "list").stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert ["tables", "1", "1"] in [row.split() for row in rows]
    about, heading, row = ottla("topic", "describe", "tables").stdout.splitlines()
    assert about.startswith("topic tables  id ")
    assert about.endswith("settings: durability=replicated")
    assert heading.split()[:3] == ["PARTITION", "LEADER", "EPOCH"]
    assert row.split()[0] == "0"


def test_a_topic_that_is_there_is_an_error_unless_that_is_fine(ottla: Ottla) -> None:
    assert ottla("topic", "create", "twice").returncode == 0
    again = ottla("topic", "create", "twice")
    assert again.returncode == 1
    assert again.stderr.startswith("ottla: topic twice: ")
    assert again.stderr.count("\n") == 1
    content = ottla("topic", "create", "twice", "--if-not-exists")
    assert (content.returncode, content.stderr) == (0, "topic twice exists already\n")


def test_a_topic_grows_and_changes_its_settings(ottla: Ottla) -> None:
    ottla("topic", "create", "grown", "--config", "segment.bytes=2048")
    changed = ottla(
        *("topic", "alter", "grown", "--partitions", "4"),
        *("--set", "retention.ms=5000", "--delete", "segment.bytes"),
    )
    assert (changed.returncode, changed.stderr) == (0, "topic grown changed\n")
    topic = json.loads(ottla("topic", "describe", "grown", "--json").stdout)
    assert len(topic["partitions"]) == 4
    assert topic["settings"] == {"retention.ms": "5000"}


def test_a_topic_gets_fewer_active_partitions_and_more_again(ottla: Ottla) -> None:
    ottla("topic", "create", "shrunk", "--partitions", "4")
    shrunk = ottla("topic", "alter", "shrunk", "--partitions", "2", "--drop-when", "read")
    assert shrunk.returncode == 0
    assert "partitions from 2 on are sealed" in shrunk.stderr
    topic = json.loads(ottla("topic", "describe", "shrunk", "--json").stdout)
    assert len(topic["partitions"]) == 4
    assert topic["settings"] == {"active.partitions": "2", "partition.drop.when": "read"}
    again = ottla("topic", "alter", "shrunk", "--partitions", "2")
    assert again.returncode == 0
    grown = ottla("topic", "alter", "shrunk", "--partitions", "5")
    assert (grown.returncode, grown.stderr) == (0, "topic shrunk changed\n")
    topic = json.loads(ottla("topic", "describe", "shrunk", "--json").stdout)
    assert len(topic["partitions"]) == 5
    assert topic["settings"] == {"partition.drop.when": "read"}


def test_what_the_broker_refuses_is_one_line(ottla: Ottla) -> None:
    refused = [
        ottla("topic", "create", "bad", "--config", "retention.msec=1"),
        ottla("topic", "create", "bad", "--config", "retention.ms=soon"),
        ottla("topic", "create", "bad", "--replicas", "3"),
        ottla("topic", "describe", "missing"),
        ottla("topic", "delete", "missing"),
        ottla("topic", "alter", "missing", "--set", "retention.ms=1"),
        ottla("topic", "alter", "missing", "--partitions", "3"),
    ]
    for answer in refused:
        is_bad_setting = "setting" in answer.stderr or "invalid value" in answer.stderr
        assert answer.returncode == (2 if is_bad_setting else 1), answer
        assert answer.stdout == ""
        assert answer.stderr.startswith("ottla: topic ")
        assert answer.stderr.count("\n") == 1, answer.stderr
    assert "retention.msec" in refused[0].stderr


def test_nonsense_never_reaches_the_broker(ottla: Ottla) -> None:
    for arguments in (
        ["create", "white space"],
        ["create", "x", "--partitions", "0"],
        ["create", "x", "--config", "retention.ms"],
        ["alter", "x"],
        ["alter", "x", "--set", "a=1", "--delete", "a"],
    ):
        answer = ottla("topic", *arguments)
        assert answer.returncode == 2, answer
        assert answer.stderr.count("\n") == 1


def test_one_missing_topic_does_not_save_the_others(ottla: Ottla) -> None:
    ottla("topic", "create", "doomed")
    deleted = ottla("topic", "delete", "missing", "doomed", "--yes")
    assert deleted.returncode == 1
    assert "topic doomed deleted" in deleted.stderr
    assert "topic missing: " in deleted.stderr
