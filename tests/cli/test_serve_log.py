"""The log of `ottla serve`: the fields that docs/operations.md lists, and what a start reports."""

import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from cli.processes import PATIENCE_S, RunningBroker, call_ottla, start_broker
from ottla import __version__

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
TYPES: Final = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
}
Event = dict[str, Any]


def documented(table: str) -> dict[str, tuple[type, ...]]:
    """Fields of a table of the page, with their types."""
    found = re.search(rf"<!-- fields:{table} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", found[1], re.MULTILINE)
    return {name: TYPES[kind] for name, kind in rows}


def events(data: Path) -> list[Event]:
    """The lines that a broker has logged, each of which is an object."""
    lines = (data.parent / f"{data.name}.log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def the(event: str, data: Path) -> Event:
    (found,) = [one for one in events(data) if one["event"] == event]
    return found


def kill(broker: RunningBroker) -> None:
    """End it as the kernel does."""
    broker.process.kill()
    broker.process.wait(PATIENCE_S)
    assert broker.process.stdout is not None
    broker.process.stdout.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_every_line_has_the_documented_fields(data: Path) -> None:
    assert start_broker(data, "--log-format", "json", "--log-level", "debug").stop() == 0
    found = events(data)
    always = {name: kinds for name, kinds in documented("json-log").items() if name != "traceback"}
    assert len(always) == 5
    assert [one["event"] for one in found] == ["broker started", "broker stopping"]
    for event in found:
        assert {name: isinstance(event[name], kinds) for name, kinds in always.items()} == (
            dict.fromkeys(always, True)
        )
        moment = datetime.fromisoformat(event["time"])
        assert moment.utcoffset() is not None
        assert int(moment.timestamp() * 1000) == pytest.approx(event["time_ms"], abs=1)


def test_a_start_reports_version_directory_settings_and_a_clean_stop(data: Path) -> None:
    settings = ("--set", "num.partitions=3", "--set", "log.retention.ms=1000")
    assert start_broker(data).stop() == 0
    broker = start_broker(data, "--log-format", "json", *settings)
    assert broker.stop() == 0
    started = the("broker started", data)
    fields = documented("broker-started")
    assert {name for name in started if name not in documented("json-log")} == set(fields)
    for name, kinds in fields.items():
        assert isinstance(started[name], kinds), name
    assert started["version"] == __version__
    assert (started["data"], started["address"]) == (str(data), broker.address)
    assert started["settings"] == {"num.partitions": "3", "log.retention.ms": "1000"}
    assert (started["clean_stop"], started["recovered_bytes"]) == (True, 0)


def test_a_start_after_a_kill_reports_what_it_recovered(data: Path) -> None:
    broker = start_broker(data)
    done = call_ottla("produce", "t", broker=broker.address, stdin="one\ntwo\nthree\n")
    assert done.returncode == 0, done.stderr
    kill(broker)
    (log,) = (data / "t-0").glob("*.log")
    size_bytes = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"a torn tail")
    broker = start_broker(data, "--log-format", "json")
    assert broker.stop() == 0
    started = the("broker started", data)
    names = ("clean_stop", "logs", "recovered_logs", "recovered_bytes", "recovered_offsets")
    assert [started[name] for name in names] == [False, 1, 1, size_bytes, 3]
    assert (started["cut_bytes"], started["damaged_ranges"], started["strays"]) == (11, 0, 0)


def test_a_start_reports_logs_that_were_set_aside(data: Path, tmp_path: Path) -> None:
    assert start_broker(data).stop() == 0
    other = start_broker(tmp_path / "other")
    assert call_ottla("produce", "t", broker=other.address, stdin="one\n").returncode == 0
    assert other.stop() == 0
    shutil.copytree(other.data / "t-0", data / "t-0")
    assert start_broker(data, "--log-format", "json").stop() == 0
    started = the("broker started", data)
    assert (started["logs"], started["strays"]) == (0, 1)
    assert any(path.name.endswith("-stray") for path in data.iterdir())
