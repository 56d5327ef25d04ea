"""The store of a data directory: made with a new one, and never instead of a lost one."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.environment import open_sqlite
from ottla.broker.meta_properties import IDENTITY_FILE
from ottla.clock import SystemClock
from ottla.cluster.store_sqlite import STORE_FILES
from ottla.errors import UsageRefused

PATIENCE_S = 120


def test_a_new_directory_gets_a_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await open_sqlite(tmp_path, SystemClock())
        await store.close()
        assert (tmp_path / STORE_FILES[0]).stat().st_size > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [None, b""])
def test_a_directory_that_lost_its_store_is_refused_and_nothing_is_made(
    tmp_path: Path, content: bytes | None
) -> None:
    (tmp_path / IDENTITY_FILE).write_text("version=1\n")
    path = tmp_path / STORE_FILES[0]
    if content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageRefused, match="accept-store"):
        asyncio.run(open_sqlite(tmp_path, SystemClock()))
    assert sorted(tmp_path.iterdir()) == before


def traced_syncs(tmp_path: Path, arguments: str) -> int:
    """How often a process that starts and stops an embedded broker waits for the disk."""
    if shutil.which("strace") is None:
        pytest.skip("looking at system calls needs strace, which is not installed")
    program = f"import pathlib\nfrom ottla import testing\nwith testing.broker({arguments}): pass\n"
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,syncfs,sync"
    command = ["strace", "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace)]
    subprocess.run([*command, sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    return trace.read_text().count("sync")


@pytest.mark.slow
def test_only_a_directory_that_is_kept_waits_for_the_disk(tmp_path: Path) -> None:
    """Logs and store, as the kernel saw it."""
    assert traced_syncs(tmp_path, "") == 0
    assert traced_syncs(tmp_path, f"data=pathlib.Path({str(tmp_path / 'data')!r})") > 0
