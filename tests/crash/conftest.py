"""Seeds that can be set, and file systems that go away again."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from crash.mounts import Ext4, SmallDisk, mounting_problem

SEED_VARIABLE = "OTTLA_CRASH_SEED"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """Chance from a seed that is printed, and that OTTLA_CRASH_SEED sets."""
    seed = int(os.environ.get(SEED_VARIABLE, "") or int.from_bytes(os.urandom(4)))
    sys.stdout.write(f"{SEED_VARIABLE}={seed}\n")  # shown when the test fails
    return Random(f"{seed} {request.node.name}")


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Ext4]:
    """A file system of its own in a file, whose power can be cut."""
    if (problem := mounting_problem("loop", tmp_path)) is not None:
        pytest.skip(problem)
    disk = Ext4(tmp_path / "disk.ext4", tmp_path / "disk")
    try:
        disk.mount()
        yield disk
    finally:
        disk.unmount()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system that is soon full."""
    if (problem := mounting_problem("tmpfs", tmp_path)) is not None:
        pytest.skip(problem)
    disk = SmallDisk(tmp_path / "small")
    try:
        disk.mount()
        yield disk
    finally:
        disk.unmount()
