"""Lines from pipes and files, and bytes to them at the pace of their reader."""

import asyncio
import fcntl
import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.cli import async_io
from ottla.cli.async_io import AsyncLines, AsyncOutput
from ottla.cli.output import OutputFailed
from ottla.errors import UsageRefused

MUCH = bytes(range(256)) * 4000  # more than a pipe holds


async def all_lines(descriptor: int) -> list[bytes]:
    source = AsyncLines(descriptor)
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
        source = AsyncLines(reading)
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


def test_descriptors_of_a_thousand_and_more_are_read_and_written() -> None:
    """As in a process that has many files and connections open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    low = os.pipe()
    reading, writing = (fcntl.fcntl(one, fcntl.F_DUPFD, 1500) for one in low)
    try:

        async def scenario() -> None:
            await AsyncOutput(writing).write(b"one\ntwo\n")
            assert await AsyncLines(reading).next_lines() == [b"one", b"two"]

        asyncio.run(scenario())
    finally:
        for descriptor in (*low, reading, writing):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_waiting_for_lines_can_be_cancelled() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await AsyncLines(reading).next_lines()
        os.close(reading)
        os.close(writing)

    asyncio.run(scenario())


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(async_io, "LINE_BYTES_MAX", 10)
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 11)
    descriptor = os.open(file, os.O_RDONLY)
    with pytest.raises(UsageRefused, match="longer than 10 bytes"):
        asyncio.run(all_lines(descriptor))
    os.close(descriptor)


def test_a_pipe_that_is_full_does_not_stop_the_loop() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        work = asyncio.create_task(AsyncOutput(writing).write(MUCH))
        found = b""
        while not work.done():  # the loop turns all the time: a writer that blocks it would hang
            await asyncio.sleep(0)
            with suppress(BlockingIOError):
                found += os.read(reading, 65_536)
        await work
        os.close(writing)
        while piece := os.read(reading, 65_536):
            found += piece
        os.close(reading)
        assert found == MUCH

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_write_that_waits_for_its_reader_can_be_cancelled() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        work = asyncio.create_task(AsyncOutput(writing).write(MUCH))
        await asyncio.wait([work], timeout=0.05)
        assert not work.done()
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        os.close(reading)
        os.close(writing)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_reader_that_has_gone_is_noticed() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            await AsyncOutput(writing).write(b"lost")
        os.close(writing)

    asyncio.run(scenario())


def test_a_file_takes_it_all(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    asyncio.run(AsyncOutput(descriptor).write(MUCH))
    os.close(descriptor)
    assert (tmp_path / "out").read_bytes() == MUCH


def test_a_descriptor_that_does_not_block_gets_everything() -> None:
    assert asyncio.run(asyncio.wait_for(_through_a_pipe(MUCH), 30)) == MUCH


def test_a_pipe_that_another_program_fills_in_between_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked writable, and is full by the time of the write."""
    monkeypatch.setattr(async_io, "_is_ready", lambda descriptor, event: True)

    assert asyncio.run(asyncio.wait_for(_through_a_pipe(MUCH), 30)) == MUCH


async def _through_a_pipe(content: bytes) -> bytes:
    """What comes out of a pipe whose writing end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found = asyncio.create_task(asyncio.to_thread(_read_to_end, reading))
    try:
        await AsyncOutput(writing).write(content)
    finally:
        os.close(writing)
        arrived = await found
        os.close(reading)
    return arrived


def _read_to_end(descriptor: int) -> bytes:
    found = b""
    while piece := os.read(descriptor, 65_536):
        found += piece
    return found


def test_a_device_that_is_full_is_named() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputFailed, match="no space left on device"):
        asyncio.run(AsyncOutput(full).write(b"x"))
    os.close(full)


def test_work_that_writes_nothing_ends_when_its_reader_goes() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        asyncio.get_running_loop().call_later(0.01, os.close, reading)
        with pytest.raises(BrokenPipeError):
            await AsyncOutput(writing).run_while_open(asyncio.sleep(3600))
        os.close(writing)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_work_is_run_to_its_end_and_its_error_is_raised(tmp_path: Path) -> None:
    async def fail() -> None:
        raise KeyError("mine")

    async def scenario() -> None:
        reading, writing = os.pipe()
        file = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        for descriptor in (writing, file):
            await AsyncOutput(descriptor).run_while_open(asyncio.sleep(0))
            with pytest.raises(KeyError, match="mine"):
                await AsyncOutput(descriptor).run_while_open(fail())
        for descriptor in (reading, writing, file):
            os.close(descriptor)

    asyncio.run(asyncio.wait_for(scenario(), 30))
