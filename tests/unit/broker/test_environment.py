"""The store of a data directory: made with a new one, and never instead of a lost one."""

import asyncio
from pathlib import Path

import pytest

from ottla.broker.environment import open_sqlite
from ottla.broker.meta_properties import IDENTITY_FILE
from ottla.clock import SystemClock
from ottla.cluster.store_sqlite import STORE_FILES
from ottla.errors import UsageRefused


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
