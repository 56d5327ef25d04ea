"""Streams that write everything, whatever their descriptor is."""

import fcntl
import os
import subprocess
import sys
import threading

import pytest

from ottla.cli.output import DescriptorWriter, OutputFailed

MUCH = bytes(range(256)) * 4096  # a megabyte: many times what a pipe holds
PATIENCE_S = 120
LIST = [sys.executable, "-m", "ottla", "config", "list", "--json"]


def test_a_pipe_that_does_not_block_gets_everything() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found = bytearray()

    def collect() -> None:
        while piece := os.read(reading, 1000):
            found.extend(piece)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        assert DescriptorWriter(writing).write(MUCH) == len(MUCH)
    finally:
        os.close(writing)
        collector.join(PATIENCE_S)
        os.close(reading)
    assert found == MUCH


def test_a_reader_that_has_gone_is_noticed_in_the_middle_of_a_write() -> None:
    reading, writing = os.pipe()

    def leave_early() -> None:
        os.read(reading, 1000)
        os.close(reading)

    reader = threading.Thread(target=leave_early)
    reader.start()
    with pytest.raises(BrokenPipeError):
        DescriptorWriter(writing).write(MUCH)
    reader.join(PATIENCE_S)
    os.close(writing)


def test_a_full_disk_is_an_error_of_its_own() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputFailed, match="standard output cannot be written: no space left"):
        DescriptorWriter(full).write(b"text")
    os.close(full)


def listed(*, unbuffered: str, is_blocking: bool) -> bytes:
    """The output of a command through a pipe that is read slowly, in small pieces."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, is_blocking)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(LIST, stdout=writing, env=environment) as command:
        os.close(writing)
        found = bytearray()
        while piece := os.read(reading, 1000):
            found += piece
        os.close(reading)
        assert command.wait(PATIENCE_S) == 0
    return bytes(found)


@pytest.mark.slow
def test_no_byte_is_lost_whatever_the_pipe_is_and_python_buffers() -> None:
    expected = listed(unbuffered="", is_blocking=True)
    assert len(expected) > 2 * 4096
    assert listed(unbuffered="1", is_blocking=True) == expected
    assert listed(unbuffered="", is_blocking=False) == expected
    assert listed(unbuffered="1", is_blocking=False) == expected


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_is_full_is_one_line_and_status_1(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            LIST,
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"ottla: standard output cannot be written: no space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_defect(closed: str) -> None:
    script = f'"$0" -m ottla version {closed}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
