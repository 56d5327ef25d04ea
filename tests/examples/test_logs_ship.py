"""The log example ships every line once, whatever happens to files and shippers."""

from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import ottla.testing
from examples.logs.ship import LINE_BYTES_MAX, LINES, Shipper, create_topics, service_of
from examples.news.topics import is_at_end

PATIENCE_S = 60


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


def shipped(address: str) -> list[tuple[str, str]]:
    """Service and line of all committed records."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(LINES, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(PATIENCE_S)) is not None and not is_at_end(message):
        found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
    consumer.close()
    return found


def append(file: Path, text: str) -> None:
    with file.open("a") as log:
        log.write(text)


def test_each_line_is_shipped_once_and_whole(ottla_broker: str, directory: Path) -> None:
    create_topics(ottla_broker)
    append(directory / "web.log", "one\ntwo\nthr")
    shipper = Shipper(ottla_broker, directory)
    assert shipper.ship() == 2
    assert shipper.ship() == 0
    append(directory / "web.log", "ee\n")
    append(directory / "db.log", "four\n")
    assert shipper.ship() == 2
    assert sorted(shipped(ottla_broker)) == [
        ("db", "four"),
        ("web", "one"),
        ("web", "three"),
        ("web", "two"),
    ]


def test_the_next_shipper_goes_on_and_fences_the_last(ottla_broker: str, directory: Path) -> None:
    create_topics(ottla_broker)
    append(directory / "web.log", "one\n")
    first = Shipper(ottla_broker, directory)
    first.ship()
    append(directory / "web.log", "two\n")
    assert Shipper(ottla_broker, directory).ship() == 1
    append(directory / "web.log", "three\n")
    with pytest.raises(Exception, match=r"(?i)fenced"):
        first.ship()
    assert Shipper(ottla_broker, directory).ship() == 1
    assert [line for _, line in shipped(ottla_broker)] == ["one", "two", "three"]


def test_a_rotated_file_is_read_to_its_end(ottla_broker: str, directory: Path) -> None:
    create_topics(ottla_broker)
    log = directory / "web.log"
    append(log, "one\n")
    shipper = Shipper(ottla_broker, directory)
    shipper.ship()
    append(log, "two\n")
    log.rename(directory / "web.log.1")
    append(log, "three\n")
    assert shipper.ship() == 2
    assert sorted(shipped(ottla_broker)) == [("web", "one"), ("web", "three"), ("web", "two")]


def test_a_file_that_was_emptied_begins_anew(ottla_broker: str, directory: Path) -> None:
    create_topics(ottla_broker)
    append(directory / "web.log", "a long line\n")
    shipper = Shipper(ottla_broker, directory)
    shipper.ship()
    (directory / "web.log").write_text("new\n")
    assert shipper.ship() == 1
    assert [line for _, line in shipped(ottla_broker)] == ["a long line", "new"]


def test_a_line_that_is_too_long_comes_in_parts(directory: Path) -> None:
    with ottla.testing.broker() as address:
        create_topics(address)
        append(directory / "web.log", "x" * (LINE_BYTES_MAX + 5) + "\nshort\n")
        Shipper(address, directory).ship()
        assert [len(line) for _, line in shipped(address)] == [LINE_BYTES_MAX, 5, 5]


@pytest.mark.parametrize("name", ["checkout.log", "checkout.log.1", "checkout.log.2026-03-04"])
def test_the_service_is_the_name_of_its_file(name: str) -> None:
    assert service_of(Path(name)) == "checkout"
