"""Opening the file of a SQLite store: foreign, newer, locked and damaged files are refused."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from ottla.clock import SystemClock
from ottla.cluster.sqlite_file import RESERVED_PAGES, is_foreign
from ottla.cluster.store import Put
from ottla.cluster.store_sqlite import SqliteStore
from ottla.errors import UsageRefused

WAIT_S = 30.0


def open_and_close(path: Path, *, busy_timeout_ms: int = 5000) -> None:
    async def scenario() -> None:
        store = await SqliteStore.open(path, SystemClock(), busy_timeout_ms=busy_timeout_ms)
        await store.close()

    asyncio.run(scenario())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"not a database at all, but long enough to be looked at. " * 40)
    with pytest.raises(UsageRefused, match="is not a coordination store: name another file"):
        open_and_close(path)


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(UsageRefused, match="database of another program"):
        open_and_close(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_and_close(path)
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageRefused, match="has format 99, this version of Ottla reads up to 1"):
        open_and_close(path)


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="create its directory"):
        open_and_close(tmp_path / "missing" / "store.db")


def test_a_file_locked_by_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageRefused, match="is locked by another program"):
            open_and_close(path, busy_timeout_ms=10)


def test_a_file_that_can_be_read_and_not_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_and_close(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE VIEW room AS SELECT 1")  # in the way of what every start writes
    with pytest.raises(UsageRefused, match="does not work as a coordination store"):
        open_and_close(path)


def test_an_open_store_has_room_for_a_full_disk(tmp_path: Path) -> None:
    """Whoever may write to it may fill the disk next, so it is taken before anybody can."""

    async def scenario() -> None:
        for _ in range(2):
            store = await SqliteStore.open(tmp_path / "store.db", SystemClock())
            with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as reader:
                (free_pages,) = reader.execute("PRAGMA freelist_count").fetchone()
                (page_bytes,) = reader.execute("PRAGMA page_size").fetchone()
            assert free_pages >= RESERVED_PAGES
            assert (tmp_path / "store.db-wal").stat().st_size >= RESERVED_PAGES * page_bytes
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("DELETE FROM history WHERE revision = 2", "history does not end at revision 3"),
        ("UPDATE store SET revision = 2", "history does not end at revision 2"),
        ("UPDATE store SET revision = 4", "history does not end at revision 4"),
        ("DELETE FROM store", "revision is missing"),
        (
            "UPDATE entries SET value = x'00' WHERE key = 'b'",
            "'b' differs from its history at revision 2",
        ),
        (
            "UPDATE entries SET mod_revision = 1 WHERE key = 'c'",
            "'c' differs from its history at revision 3",
        ),
        (
            "UPDATE entries SET mod_revision = 9 WHERE key = 'a'",
            "'a' differs from its history at revision 1",
        ),
        ("DELETE FROM entries WHERE key = 'a'", "'a' differs from its history at revision 1"),
        ("ALTER TABLE leases RENAME COLUMN ttl_ms TO ttk_ms", "unexpected tables"),
    ],
)
def test_a_store_that_contradicts_itself_is_refused(
    tmp_path: Path, damage: str, reason: str
) -> None:
    path = tmp_path / "store.db"

    async def fill() -> None:
        store = await SqliteStore.open(path, SystemClock())
        for key in ("a", "b", "c"):
            await store.commit([Put(key, b"1")])
        await store.close()

    asyncio.run(fill())
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(damage)
    with pytest.raises(UsageRefused, match=reason):
        open_and_close(path)


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (b"", False),  # a store that is just being created
        (b"notes", True),
        (b"SQLite format 3\0" + bytes(84), False),  # its application id is in the journal yet
        (b"SQLite format 3\0" + bytes(52) + b"Ottl" + bytes(28), False),
        (b"SQLite format 3\0" + bytes(52) + b"Othe" + bytes(28), True),
    ],
    ids=["empty", "text", "without application id", "ours", "of another program"],
)
def test_a_foreign_file_is_recognised_by_its_first_bytes(content: bytes, is_one: bool) -> None:
    assert is_foreign(content) is is_one
