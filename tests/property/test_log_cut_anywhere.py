"""A segment that ends at any byte opens to a valid prefix."""

import os
from bisect import bisect_right
from random import Random
from typing import Final

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.model import Offset
from ottla.records.batch import batches
from ottla.storage.recovery import recover

TAIL_BYTES: Final = int(os.environ.get("OTTLA_CUT_KIB", "16")) << 10


def segment(rng: Random) -> bytes:
    """A bit more than the tail, in batches of mixed sizes."""
    files = MemoryFiles()
    log = build.log(files)
    while log.size_bytes < TAIL_BYTES + 2000:
        build.append(log, rng.randint(1, 3), value=rng.randbytes(rng.choice([10, 200, 3000])))
    return files.read_whole(build.DIRECTORY / "00000000000000000000.log")


def opened(content: bytes) -> tuple[int, bytes]:
    """End offset and bytes of a log whose one segment holds `content` and nothing was durable."""
    files = MemoryFiles()
    files.make_dir(build.DIRECTORY)
    path = build.DIRECTORY / "00000000000000000000.log"
    files.create(path).append(content)
    found = recover(
        files,
        build.DIRECTORY,
        start_offset=Offset(0),
        recovery_point=Offset(0),
        interval_bytes=4096,
        now_ms=build.NOW_MS,
    )
    assert not found.corrupt
    return found.active.end_offset, files.read_whole(path)


@pytest.mark.slow
def test_a_log_cut_at_every_byte_of_its_end_opens_to_whole_batches() -> None:
    whole = segment(Random(1))
    starts, offsets = [0], [0]  # where batches begin, and with which offset; then the end
    for header, view in batches(whole):
        starts.append(starts[-1] + len(view))
        offsets.append(header.next_offset)
    for size in range(len(whole) - TAIL_BYTES, len(whole) + 1):
        last = bisect_right(starts, size) - 1
        # The few batches before the cut are enough: those before them are only read again.
        first = max(0, last - 1)
        end_offset, kept = opened(whole[starts[first] : size])
        assert len(kept) == starts[last] - starts[first]
        assert end_offset == offsets[last]
