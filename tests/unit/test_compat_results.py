"""The list of what passes in `make compat`: merged with a run, written, read again; and how two
outputs of Kafka's tools are compared."""

from pathlib import Path

import pytest

from compat import results
from compat.kafka_tools import Command, Outcome, read_commands, shape_of
from compat.results import Part

HERE = Path(__file__).parents[2] / "compat"


def test_a_list_that_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    listed = {
        "one": Part({"test_a", 'test_b["x"]'}, {"test_c": 'because of "it"'}),
        "two": Part({"test_d"}),
    }
    file = tmp_path / "results.toml"
    file.write_text(results.render(listed))
    assert results.read(file) == listed


def test_no_list_is_an_empty_one(tmp_path: Path) -> None:
    assert results.read(tmp_path / "results.toml") == {}


def test_a_run_renews_the_parts_that_it_saw() -> None:
    listed = {
        "seen": Part({"breaks", "left out", "gone"}, {"mended": "was broken", "still": "known"}),
        "other": Part({"test"}),
    }
    outcomes = {
        "breaks": "failed",
        "left out": "skipped",
        "mended": "passed",
        "still": "failed",
        "new": "passed",
        "new and left out": "skipped",
    }
    merged = results.merge(listed, {"seen": outcomes})
    assert merged["seen"].passed == {"left out", "mended", "new"}
    assert merged["seen"].differs == {"breaks": "not looked into yet", "still": "known"}
    assert merged["other"] == Part({"test"})


def test_every_part_is_listed_and_every_difference_explained() -> None:
    listed = results.read()
    modules = {file.stem.removeprefix("test_") for file in HERE.glob("test_*.py")}
    assert set(listed) == modules
    for name, part in listed.items():
        assert part.known, name
        for test, reason in part.differs.items():
            assert reason != "not looked into yet", f"{name}: {test}"


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        (
            "t\tTopicId: sVsU2Pz6Ss65IlvcUBVUWA\tPartitionCount: 3",
            "t TopicId: ID PartitionCount: N",
        ),
        ("TopicId: PokOy_IwSFaZTriYHdqwgg", "TopicId: ID"),
        ("a-name-of-22-characters", "a-name-of-N-characters"),
        ("console-consumer-51760 Consumer", "console-consumer-N Consumer"),
        ("orders:0:12", "orders:N:N"),
        ("coordinator 127.0.0.1:9092 (0)", "coordinator ADDRESS (N)"),
        ('{"log_dirs":["/var/lib/kafka"]}', '{"log_dirs":["PATH"]}'),
        ("Error while executing x command : no t", "Error while executing x command : TEXT"),
        (
            "failed due to org.apache.kafka.common.errors.GroupIdNotFoundException: no g",
            "failed due to org.apache.kafka.common.errors.GroupIdNotFoundException: TEXT",
        ),
    ],
)
def test_a_line_loses_what_may_differ(line: str, shape: str) -> None:
    assert shape_of(line) == shape


def test_outputs_are_compared_by_status_exceptions_and_lines() -> None:
    command = Command(name="c", run="topics", lines=("offset",), sorted=True)
    error = "java.lang.X: org.apache.kafka.common.errors.UnknownServerException: x"
    outcome = Outcome(1, "title\noffset b\noffset a\n\tat offset\n", error)
    assert command.shape(outcome) == ["exit 1", "UnknownServerException", "offset a", "offset b"]
    only_status = Command(name="c", run="topics", status_only="figures")
    assert only_status.shape(outcome) == ["exit 1"]


def test_the_table_of_commands_is_sound() -> None:
    commands, files = read_commands()
    assert len(commands) > 100
    for one in commands:
        for word in one.run.split():
            if word.startswith("{"):
                assert word[1:-1] in {*files, "empty.properties"}, one.name
