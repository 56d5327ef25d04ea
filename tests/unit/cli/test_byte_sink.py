"""Bytes to pipes and files, at the pace of whoever reads."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.cli.byte_sink import ByteSink

MUCH = bytes(range(256)) * 4000  # more than a pipe holds


def test_a_pipe_that_is_full_does_not_stop_the_loop() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        work = asyncio.create_task(ByteSink(writing).write(MUCH))
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


def test_who_waits_for_a_reader_can_be_told_to_stop() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        work = asyncio.create_task(ByteSink(writing).write(MUCH))
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
            await ByteSink(writing).write(b"nobody")
        os.close(writing)

    asyncio.run(scenario())


def test_a_file_takes_it_all(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    asyncio.run(ByteSink(descriptor).write(MUCH))
    os.close(descriptor)
    assert (tmp_path / "out").read_bytes() == MUCH
