"""Logs that were set aside come back by command, and a store that went back is accepted by one."""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.processes import call_ottla
from ottla import testing
from ottla.errors import UsageRefused

LATE = "late-0"


def ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
    return call_ottla(*arguments)


def fields(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def produce(address: str, topic: str, *values: str) -> None:
    """Write records whose keys are their values, so that they spread over the partitions."""
    lines = "".join(f"{value}:{value}\n" for value in values)
    done = call_ottla("produce", topic, "--key-separator", ":", broker=address, stdin=lines)
    assert done.returncode == 0, done.stderr


def consume(address: str, topic: str) -> list[str]:
    done = call_ottla("consume", topic, "--from", "beginning", broker=address)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def copy_store(data: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for path in data.glob("cluster.sqlite*"):
        shutil.copy(path, to)


def restore_store(data: Path, copy: Path) -> None:
    for path in data.glob("cluster.sqlite*"):
        path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped broker with two topics, whose store was replaced by an older copy."""
    data = tmp_path / "data"
    with testing.broker(data=data) as address:
        produce(address, "orders", "one", "two")
    copy_store(data, tmp_path / "copy")
    with testing.broker(data=data) as address:
        call_ottla("topic", "create", "late", "--partitions", "2", broker=address)
        produce(address, "late", *(f"late {number}" for number in range(20)))
    restore_store(data, tmp_path / "copy")
    return data


def accept(data: Path) -> subprocess.CompletedProcess[str]:
    done = ottla("log", "accept-store", str(data), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    return done


def set_aside(data: Path) -> None:
    """Start and stop, so that what the store does not know is set aside."""
    with testing.broker(data=data):
        pass


def test_a_store_that_went_back_is_refused_until_it_is_accepted(data: Path) -> None:
    with pytest.raises(UsageRefused, match=r"went back.*ottla log accept-store"):
        set_aside(data)
    assert (data / LATE).is_dir()
    asked = ottla("log", "accept-store", str(data))
    assert asked.returncode == 2
    assert "late-0, late-1: the next start sets these logs aside" in asked.stderr
    assert "use --yes" in asked.stderr
    with pytest.raises(UsageRefused, match="went back"):
        set_aside(data)
    (said,) = fields(accept(data))
    assert said["dropped"] == []
    with testing.broker(data=data) as address:
        assert consume(address, "orders") == ["one", "two"]
    assert not (data / LATE).exists()


def test_strays_of_a_lost_topic_are_adopted_with_its_id_and_partitions(data: Path) -> None:
    accept(data)
    metadata = (data / LATE / "partition.metadata").read_bytes()
    set_aside(data)
    listed = fields(ottla("log", "strays", "list", str(data), "--json"))
    assert [(row["topic"], row["partition"], row["problem"]) for row in listed] == [
        ("late", 0, None),
        ("late", 1, None),
    ]
    done = ottla("log", "strays", "adopt", str(data), "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["adopted"] for row in fields(done)] == [True, True]
    assert (data / LATE / "partition.metadata").read_bytes() == metadata
    with testing.broker(data=data) as address:
        assert sorted(consume(address, "late")) == sorted(f"late {n}" for n in range(20))
        produce(address, "late", "new")
        assert len(consume(address, "late")) == 21
        described = call_ottla("topic", "describe", "late", broker=address)
        assert "retention.ms=-1" in described.stdout
    assert fields(ottla("log", "strays", "list", str(data), "--json")) == []
    assert ottla("log", "verify", str(data)).returncode == 0


def test_a_stray_of_a_topic_that_is_there_takes_the_place_of_an_empty_log(
    data: Path, tmp_path: Path
) -> None:
    accept(data)
    set_aside(data)
    stray = str(fields(ottla("log", "strays", "list", str(data), "--json"))[0]["stray"])
    ottla("log", "strays", "adopt", str(data), stray)
    set_aside(data)  # late-1 is made, and is empty
    assert (data / "late-1").is_dir()
    done = ottla("log", "strays", "adopt", str(data), "--all")
    assert done.returncode == 0, done.stderr
    with testing.broker(data=data) as address:
        assert sorted(consume(address, "late")) == sorted(f"late {n}" for n in range(20))
    (left,) = fields(ottla("log", "strays", "list", str(data), "--json"))
    size_bytes = left["size_bytes"]
    assert isinstance(size_bytes, int)
    assert size_bytes < 1000, "the empty log lies aside now, it was not removed"


def test_a_name_that_a_new_topic_has_taken_is_refused_and_another_one_is_not(data: Path) -> None:
    accept(data)
    set_aside(data)
    with testing.broker(data=data) as address:
        produce(address, "late", "the new one")
    listed = fields(ottla("log", "strays", "list", str(data), "--json"))
    assert all("exists already" in str(row["problem"]) for row in listed)
    done = ottla("log", "strays", "adopt", str(data), "--all")
    assert done.returncode == 1
    assert "was not adopted: topic 'late' exists already" in done.stderr
    done = ottla("log", "strays", "adopt", str(data), "--all", "--as", "older")
    assert done.returncode == 0, done.stderr
    with testing.broker(data=data) as address:
        assert consume(address, "late") == ["the new one"]
        assert sorted(consume(address, "older")) == sorted(f"late {n}" for n in range(20))


def test_purging_wants_to_be_confirmed_and_removes_only_what_is_ours(data: Path) -> None:
    accept(data)
    set_aside(data)
    first, second = (
        str(row["stray"]) for row in fields(ottla("log", "strays", "list", str(data), "--json"))
    )
    assert ottla("log", "strays", "purge", str(data), first).returncode == 2
    assert (data / first).is_dir()
    (data / second / "notes.txt").write_text("mine")
    done = ottla("log", "strays", "purge", str(data), "--all", "--yes")
    assert done.returncode == 1
    assert "notes.txt" in done.stderr
    assert not (data / first).exists()
    assert (data / second / "notes.txt").read_text() == "mine"
    assert (data / second / f"{0:020d}.log").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["adopt", "DATA"], "give names of strays or --all"),
        (["adopt", "DATA", "--all", "--as", "a b"], "a topic name consists of"),
        (["purge", "DATA", "orders-0", "--yes"], "there is no stray 'orders-0'"),
        (["list", "NOWHERE"], "is not the data directory of a broker"),
    ],
)
def test_what_makes_no_sense_is_refused(
    data: Path, tmp_path: Path, arguments: list[str], advice: str
) -> None:
    accept(data)
    places = {"DATA": str(data), "NOWHERE": str(tmp_path / "nowhere")}
    done = ottla("log", "strays", *(places.get(word, word) for word in arguments))
    assert done.returncode == 2
    assert advice in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with testing.broker(data=tmp_path / "data"):
        done = ottla("log", "strays", "list", str(tmp_path / "data"))
        assert done.returncode == 2
        assert "is in use by another broker" in done.stderr


def _damage(data: Path, prefix: str, old: bytes, new: bytes) -> None:
    """Change the value of the first key with this prefix, and not its checksum."""
    with sqlite3.connect(data / "cluster.sqlite") as store:
        found = store.execute("SELECT value FROM entries WHERE key >= ? ORDER BY key", (prefix,))
        value = found.fetchone()[0]
        assert old in value
        for table in ("entries", "history"):
            store.execute(
                f"UPDATE {table} SET value = ? WHERE value = ?",
                (value.replace(old, new), value),
            )
    store.close()


def _damage_topic(data: Path) -> None:
    _damage(data, "topics/orders", b'"internal":false', b'"internal":true')


def _damage_partition(data: Path) -> None:
    _damage(data, "partitions/", b'"leader":0', b'"leader":1')


def _lose_store(data: Path) -> None:
    for path in data.glob("cluster.sqlite*"):
        path.unlink()


def _lose_identity(data: Path) -> None:
    (data / "meta.properties").unlink()


@pytest.mark.parametrize(
    ("strike", "refusal"),
    [
        (_damage_topic, "the value of 'topics/orders' does not match its checksum"),
        (_damage_partition, "the value of 'partitions/.*/0' does not match its checksum"),
        (_lose_store, "cluster.sqlite is missing or empty"),
        (_lose_identity, "meta.properties is missing"),
    ],
)
def test_every_refused_store_has_a_way_back_to_the_records(
    tmp_path: Path, strike: Callable[[Path], None], refusal: str
) -> None:
    data = tmp_path / "data"
    with testing.broker(data=data) as address:
        produce(address, "orders", "one", "two")
    strike(data)
    with pytest.raises(UsageRefused, match=refusal):
        set_aside(data)
    accept(data)
    set_aside(data)
    if fields(ottla("log", "strays", "list", str(data), "--json")):
        assert ottla("log", "strays", "adopt", str(data), "--all").returncode == 0
    with testing.broker(data=data) as address:
        assert consume(address, "orders") == ["one", "two"]
