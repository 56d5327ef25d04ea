"""`ottla log` on the files a real broker wrote."""

import json
from pathlib import Path

import pytest

from cli.processes import call_ottla, start_broker


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker left behind: several segments of one topic, and another topic."""
    directory = tmp_path_factory.mktemp("log") / "data"
    broker = start_broker(directory)
    call_ottla("topic", "create", "t", "--config", "segment.bytes=1024", broker=broker.address)
    for n in range(10):
        call_ottla("produce", "t", "--key", "k", broker=broker.address, stdin=f"value {n}\n" * 40)
    call_ottla("produce", "u", "--compression", "gzip", broker=broker.address, stdin="zipped\n" * 9)
    assert broker.stop() == 0
    return directory


def segments(data: Path, topic: str) -> list[Path]:
    return sorted(data.rglob(f"{topic}-0/*.log"))


def test_what_a_broker_wrote_is_sound(data: Path) -> None:
    verified = call_ottla("log", "verify", str(data))
    assert verified.returncode == 0, verified
    assert verified.stdout.endswith("409 records: all sound\n")
    assert len(segments(data, "t")) > 2


def test_batches_are_shown_for_people_and_for_programs(data: Path) -> None:
    file = str(segments(data, "u")[0])
    name, batch, *letters = call_ottla("log", "dump", file, "--records").stdout.splitlines()
    assert name == file
    assert "offsets 0-8  9 records" in batch
    assert "codec gzip" in batch
    assert len(letters) == 9
    assert "value 'zipped'" in letters[0]
    (line,) = call_ottla("log", "dump", file, "--records", "--json").stdout.splitlines()
    shown = json.loads(line)
    assert (shown["base_offset"], shown["record_count"], shown["sound"]) == (0, 9, True)
    assert shown["records"][8]["offset"] == 8


def test_damage_is_found_and_named(data: Path, tmp_path: Path) -> None:
    original = segments(data, "t")[0]
    damaged = tmp_path / "t-0" / original.name
    damaged.parent.mkdir()
    content = bytearray(original.read_bytes())
    content[100] ^= 0xFF
    damaged.write_bytes(content)
    verified = call_ottla("log", "verify", str(tmp_path))
    assert verified.returncode == 1
    assert f"ottla: {damaged} at byte 0: the batch's CRC" in verified.stderr
    assert verified.stdout.endswith("1 problem, 0 damaged ranges\n")
    (line, *_) = call_ottla("log", "verify", str(tmp_path), "--json").stdout.splitlines()
    assert len(json.loads(line)["problems"]) == 1
    dumped = call_ottla("log", "dump", str(damaged))
    assert dumped.returncode == 1
    assert "DAMAGED" in dumped.stdout


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for command in ("dump", "verify"):
        missing = call_ottla("log", command, str(tmp_path / "missing"))
        assert missing.returncode == 2
        assert "no such file or directory" in missing.stderr
        empty = call_ottla("log", command, str(tmp_path))
        assert empty.returncode == 2
        assert "no segment files in" in empty.stderr
