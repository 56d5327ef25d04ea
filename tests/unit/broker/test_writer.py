"""Bytes and file ranges leave in order, however little the socket takes at a time."""

import asyncio
import os
import socket
from pathlib import Path
from random import Random

import pytest

from fakes.loopback import run, turns, until
from ottla.broker.pending import Part
from ottla.broker.writer import SENDFILE_BYTES_MIN, SocketWriter
from ottla.model import Offset, Position
from ottla.storage.files import OsFiles
from ottla.storage.log_read import FileRange

CONTENT = Random(5).randbytes(3 << 20)


class Ends:
    """A writer on one end of a connection, and the other end."""

    def __init__(self) -> None:
        self._near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.writer = SocketWriter(asyncio.get_running_loop(), self._near.fileno(), self._send_on)

    def _send_on(self) -> None:
        self.writer.flush()

    async def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(self.far, 1 << 16)
        return bytes(data)

    def close(self) -> None:
        self.writer.close()
        self._near.close()
        self.far.close()


def segment(directory: Path) -> FileRange:
    """All of a file of three megabytes."""
    file = OsFiles().create(directory / "segment")
    file.append(CONTENT)
    return FileRange(file, Position(0), len(CONTENT), Offset(0), Offset(0))


def part(whole: FileRange, start: int, size: int) -> FileRange:
    return whole._replace(position=Position(start), size_bytes=size)


def test_bytes_and_ranges_of_all_sizes_arrive_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends, whole, chance = Ends(), segment(tmp_path), Random(6)
        parts: list[Part] = []
        expected = b""
        for _ in range(60):
            size = chance.choice((1, 100, SENDFILE_BYTES_MIN - 1, SENDFILE_BYTES_MIN, 200_000))
            start = chance.randrange(len(CONTENT) - size)
            parts.append(CONTENT[start : start + size])
            parts.append(part(whole, start, size))
            expected += 2 * CONTENT[start : start + size]
        for one in parts:
            ends.writer.queue(one)
        assert ends.writer.queued_bytes == len(expected)
        ends.writer.flush()
        assert await ends.read(len(expected)) == expected
        assert ends.writer.queued_bytes == 0
        ends.close()

    run(scenario())


def test_a_full_socket_is_waited_for_and_not_spun_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = Ends()
        ends.writer.queue(segment(tmp_path))
        ends.writer.queue(b"behind it")
        ends.writer.flush()
        await turns()
        left = ends.writer.queued_bytes
        assert 0 < left < len(CONTENT)
        await turns()
        assert ends.writer.queued_bytes == left
        assert await ends.read(len(CONTENT) + 9) == CONTENT + b"behind it"
        ends.close()

    run(scenario())


def test_a_segment_that_is_deleted_meanwhile_is_sent_to_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = Ends()
        ends.writer.queue(segment(tmp_path))
        ends.writer.flush()
        (tmp_path / "segment").unlink()
        assert await ends.read(len(CONTENT)) == CONTENT
        ends.close()

    run(scenario())


def test_a_peer_that_has_gone_is_an_error_for_whoever_flushes() -> None:
    async def scenario() -> None:
        ends = Ends()
        ends.far.close()
        ends.writer.queue(b"to nobody")
        with pytest.raises(OSError, match="Broken pipe"):
            ends.writer.flush()
        ends.close()

    run(scenario())


def test_a_file_shorter_than_promised_ends_the_connection(tmp_path: Path) -> None:
    """What was promised cannot be sent, and nothing else may stand in its place."""

    async def scenario() -> None:
        ends, whole = Ends(), segment(tmp_path)
        os.truncate(tmp_path / "segment", 100_000)
        ends.writer.queue(part(whole, 200_000, 100_000))
        with pytest.raises(ConnectionResetError):
            ends.writer.flush()
        ends.close()

    run(scenario())


def test_closing_while_the_socket_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        ends = Ends()
        ends.writer.queue(segment(tmp_path))
        ends.writer.flush()
        ends.close()
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(scenario())
