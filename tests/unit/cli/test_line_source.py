"""Lines from pipes and files."""

import asyncio
import os
from pathlib import Path

import pytest

from ottla.cli import line_source
from ottla.cli.line_source import LineSource
from ottla.errors import UsageRefused


async def all_lines(descriptor: int) -> list[bytes]:
    source = LineSource(descriptor)
    lines = list[bytes]()
    while some := await source.next_lines():
        lines += some
    return lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\r\n", [b"one", b"", b"two\r"]),
        (b"\n", [b""]),
        (b"a" * 3_000_000 + b"\nb", [b"a" * 3_000_000, b"b"]),
    ],
    ids=["nothing", "no newline", "one", "empty line inside", "only a newline", "long"],
)
def test_a_file_is_read_line_by_line(content: bytes, lines: list[bytes], tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(content)
    descriptor = os.open(file, os.O_RDONLY)
    assert asyncio.run(all_lines(descriptor)) == lines
    os.close(descriptor)


def test_a_pipe_gives_its_lines_before_it_ends() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        source = LineSource(reading)
        os.write(writing, b"one\ntwo\nthr")
        assert await source.next_lines() == [b"one", b"two"]
        waiting = asyncio.create_task(source.next_lines())
        await asyncio.sleep(0)
        assert not waiting.done()
        os.write(writing, b"ee\n")
        assert await waiting == [b"three"]
        os.write(writing, b"rest")
        os.close(writing)
        assert await source.next_lines() == [b"rest"]
        assert await source.next_lines() == []
        os.close(reading)

    asyncio.run(scenario())


def test_waiting_can_be_given_up() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await LineSource(reading).next_lines()
        os.close(reading)
        os.close(writing)

    asyncio.run(scenario())


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 10)
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 11)
    descriptor = os.open(file, os.O_RDONLY)
    with pytest.raises(UsageRefused, match="longer than 10 bytes"):
        asyncio.run(all_lines(descriptor))
    os.close(descriptor)
