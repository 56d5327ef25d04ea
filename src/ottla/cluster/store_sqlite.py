"""The coordination store of one machine: a SQLite file shared by its broker processes.

All SQL runs on one thread of its own, because a commit waits for the disk and for other
processes. Other processes' commits are noticed by polling, those of this one at once.

Leases are measured in the machine's monotonic time, which all its processes share, which stands
still while a laptop sleeps, and which nobody can set. It begins anew with every boot; a lease of
an earlier boot is recognised by ending later than any lease granted now could.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from ottla.clock import Clock
from ottla.cluster.store import (
    NEVER,
    ChangeBatch,
    Compacted,
    Compare,
    Conflict,
    Delete,
    Entry,
    KeyChange,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
)
from ottla.errors import UsageRefused

STORE_FILES: Final = ("cluster.sqlite", "cluster.sqlite-wal", "cluster.sqlite-shm")
APPLICATION_ID: Final = 0x4F74746C  # "Ottl", in the header of the file
_HEADER: Final = b"SQLite format 3\0"
_APPLICATION_ID_AT: Final = slice(68, 72)
FORMAT: Final = 1
BATCHES_PER_READ: Final = 100
OPEN_ATTEMPTS_MAX: Final = 20
OPEN_PAUSE_S: Final = 0.005
ROOM_PAGES: Final = 256  # 1 MiB, in the journal and in the file
_PREFIX_END: Final = "\U0010ffff"  # sorts after every character that keys are made of

_SCHEMA: Final = """
CREATE TABLE store (revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
INSERT INTO store VALUES (0, 0);
CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL
);
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, mod_revision INTEGER NOT NULL, lease INTEGER
);
CREATE INDEX entries_of_lease ON entries (lease) WHERE lease IS NOT NULL;
CREATE TABLE history (revision INTEGER NOT NULL, key TEXT NOT NULL, value BLOB);
CREATE INDEX history_in_order ON history (revision);
"""

# Keys that are not as the newest revision that names them says, or newer than the store.
_NEWEST_DIFFERS: Final = """
SELECT newest.key, newest.revision FROM (
    SELECT key, value, max(revision) AS revision FROM history GROUP BY key
) AS newest LEFT JOIN entries ON entries.key = newest.key
WHERE entries.value IS NOT newest.value
    OR (entries.key IS NOT NULL AND entries.mod_revision != newest.revision)
UNION ALL SELECT key, mod_revision FROM entries WHERE mod_revision > ?
"""
_DAMAGED: Final = (
    "is damaged: bring back a copy of it, or move it and its -wal away and see what"
    " `ottla log accept-store DIR` can do without it"
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SqliteStore:
    """A `CoordinationStore` in one file; see there for what the calls promise."""

    def __init__(
        self, database: "_Database", thread: ThreadPoolExecutor, poll_interval_s: float
    ) -> None:
        """Use `open`."""
        self._database = database
        self._thread = thread
        self._poll_interval_s = poll_interval_s
        self._newest = NEVER  # the newest revision this process knows of
        self._advanced = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        poll_interval_s: float = 0.05,
        busy_timeout_ms: int = 5000,
        revisions_kept: int = 256,
    ) -> "SqliteStore":
        """Open the file, or create it. Raises UsageRefused when it cannot serve as a store."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ottla-store")

        def connect() -> _Database:
            connection = _open_file(path, busy_timeout_ms)
            return _Database(connection, clock, revisions_kept)

        try:
            database = await asyncio.get_running_loop().run_in_executor(thread, connect)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(database, thread, poll_interval_s)

    async def get(self, key: str) -> Snapshot:
        return await self._run(self._database.get, key)

    async def range(self, prefix: str) -> Snapshot:
        return await self._run(self._database.range, prefix)

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        assert len({write.key for write in writes}) == len(writes), "one write per key"
        revision = await self._run(self._database.commit, writes, compares)
        self._notice(revision)
        return revision

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        self._ensure_polling()
        while True:
            advanced = self._advanced
            batches = await self._run(self._database.history, prefix, after)
            for batch in batches:
                after = batch.revision
                yield batch
            if not batches:
                await advanced.wait()
                self._raise_poller_failure()

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._run(self._database.grant, ttl_ms)

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._run(self._database.keep_alive, lease)

    async def revoke(self, lease: LeaseId) -> None:
        self._notice(await self._run(self._database.revoke, lease))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        self._wake_watches()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=False)

    async def _run(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        if self._is_closed:
            raise StoreUnavailable("the coordination store is closed")
        call = partial(work, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error as problem:
            raise StoreUnavailable(f"the coordination store failed: {problem}") from problem

    def _ensure_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="ottla-store-poll")
            self._poller.add_done_callback(lambda _: self._wake_watches())

    async def _poll(self) -> None:
        while True:
            self._notice(await self._run(self._database.poll))
            await asyncio.sleep(self._poll_interval_s)

    def _raise_poller_failure(self) -> None:
        """Watches end with the poller, in the way it ended."""
        if self._is_closed:
            raise StoreUnavailable("the coordination store was closed")
        if self._poller is not None and self._poller.done() and not self._poller.cancelled():
            self._poller.result()

    def _notice(self, revision: Revision) -> None:
        if revision > self._newest:
            self._newest = revision
            self._wake_watches()

    def _wake_watches(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()


@dataclass(slots=True)
class _Version:
    """What the file looked like when it was last looked at, to see cheaply that it is the same."""

    data_version: int = -1
    revision: Revision = NEVER
    next_expiry_ms: int | None = None


class _Database:
    """The store's rules as SQL. Synchronous, and used by one thread only."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, revisions_kept: int) -> None:
        self._sql = connection
        self._clock = clock
        self._revisions_kept = revisions_kept
        self._seen = _Version()

    def get(self, key: str) -> Snapshot:
        with self._reading() as revision:
            return self._snapshot(revision, "key = ?", key)

    def range(self, prefix: str) -> Snapshot:
        with self._reading() as revision:
            return self._snapshot(revision, "key >= ? AND key < ?", prefix, prefix + _PREFIX_END)

    def commit(self, writes: Sequence[Write], compares: Sequence[Compare]) -> Revision:
        with self._writing(durable=True) as before:
            revision = self._end_leases(self._expired_leases(), before)
            for compare in compares:
                if self._mod_revision(compare.key) != compare.mod_revision:
                    raise Conflict(f"{compare.key} was written by somebody else")
            return self._write(writes, revision)

    def history(self, prefix: str, after: Revision) -> list[ChangeBatch]:
        """The batches that follow `after`, but not more than are read at a time."""
        with self._reading():
            compacted = self._one("SELECT compacted FROM store")
            if after < compacted:
                raise Compacted(f"revisions up to {compacted} are gone, {after} was asked for")
            rows = self._sql.execute(
                "SELECT revision, key, value FROM history WHERE revision > ? AND revision <= ?"
                " ORDER BY revision, rowid",
                (after, after + BATCHES_PER_READ),
            ).fetchall()
        return [
            ChangeBatch(
                Revision(revision),
                tuple(KeyChange(key, value) for _, key, value in group if key.startswith(prefix)),
            )
            for revision, group in groupby(rows, key=lambda row: row[0])
        ]

    def grant(self, ttl_ms: int) -> LeaseId:
        with self._writing(durable=False):
            cursor = self._sql.execute(
                "INSERT INTO leases (ttl_ms, expires_ms) VALUES (?, ?)",
                (ttl_ms, self._now_ms() + ttl_ms),
            )
            assert cursor.lastrowid is not None
            return LeaseId(cursor.lastrowid)

    def keep_alive(self, lease: LeaseId) -> None:
        with self._writing(durable=False):
            now_ms = self._now_ms()
            kept = self._sql.execute(
                "UPDATE leases SET expires_ms = ? + ttl_ms"
                " WHERE id = ? AND expires_ms > ? AND expires_ms <= ? + ttl_ms",
                (now_ms, lease, now_ms, now_ms),
            ).rowcount
        if not kept:
            raise LeaseLost(f"lease {lease} was not kept alive in time")

    def revoke(self, lease: LeaseId) -> Revision:
        with self._writing(durable=True) as revision:
            return self._end_leases([lease], revision)

    def poll(self) -> Revision:
        """The newest revision, after leases whose time is over have ended."""
        data_version = self._one("PRAGMA data_version")
        seen = self._seen
        if data_version != seen.data_version:
            with self._reading() as revision:
                seen = _Version(data_version, revision, self._next_expiry_ms())
            self._seen = seen
        if seen.next_expiry_ms is not None and seen.next_expiry_ms <= self._now_ms():
            with self._writing(durable=True) as revision:
                return self._end_leases(self._expired_leases(), revision)
        return seen.revision

    def close(self) -> None:
        self._sql.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Revision]:
        """Everything read inside belongs to one revision, which is handed in."""
        self._sql.execute("BEGIN")
        try:
            yield Revision(self._one("SELECT revision FROM store"))
        finally:
            self._sql.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self, *, durable: bool) -> Iterator[Revision]:
        """Nobody else writes meanwhile; on an error nothing was written.

        Leases need not outlive a power cut, so keeping one alive does not wait for the disk.
        """
        self._seen = _Version()  # SQLite's data version does not count this connection's writes
        self._sql.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield Revision(self._one("SELECT revision FROM store"))
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise

    def _snapshot(self, revision: Revision, condition: str, *arguments: str) -> Snapshot:
        rows = self._sql.execute(
            f"SELECT key, value, mod_revision FROM entries WHERE {condition} ORDER BY key",  # noqa: S608
            arguments,
        )
        return Snapshot(revision, tuple(Entry(*row) for row in rows))

    def _mod_revision(self, key: str) -> Revision:
        row = self._sql.execute("SELECT mod_revision FROM entries WHERE key = ?", (key,)).fetchone()
        return NEVER if row is None else Revision(row[0])

    def _write(self, writes: Sequence[Write], revision: Revision) -> Revision:
        following = Revision(revision + 1)
        changes = [change for write in writes if (change := self._write_one(write, following))]
        return self._record(changes, revision)

    def _write_one(self, write: Write, revision: Revision) -> KeyChange | None:
        match write:
            case Put(key, value, lease):
                if lease is not None:
                    self._check_lease(lease)
                self._sql.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                    " value = excluded.value, mod_revision = excluded.mod_revision,"
                    " lease = excluded.lease",
                    (key, value, revision, lease),
                )
                return KeyChange(key, value)
            case Delete(key):
                gone = self._sql.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount
                return KeyChange(key, None) if gone else None

    def _check_lease(self, lease: LeaseId) -> None:
        if self._sql.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is None:
            raise LeaseLost(f"lease {lease} is over, nothing was written")

    def _expired_leases(self) -> list[LeaseId]:
        # The clock is read after the transaction began, so no lease seen here was granted later.
        now_ms = self._now_ms()
        rows = self._sql.execute(
            "SELECT id FROM leases WHERE expires_ms <= ? OR expires_ms > ? + ttl_ms ORDER BY id",
            (now_ms, now_ms),
        )
        return [LeaseId(row[0]) for row in rows]

    def _next_expiry_ms(self) -> int | None:
        if self._expired_leases():
            return self._now_ms()
        expiry_ms: int | None = self._one("SELECT min(expires_ms) FROM leases")
        return expiry_ms

    def _end_leases(self, leases: Sequence[LeaseId], revision: Revision) -> Revision:
        changes = []
        for lease in leases:
            rows = self._sql.execute(
                "DELETE FROM entries WHERE lease = ? RETURNING key", (lease,)
            ).fetchall()
            changes += [KeyChange(row[0], None) for row in sorted(rows)]
            self._sql.execute("DELETE FROM leases WHERE id = ?", (lease,))
        return self._record(changes, revision)

    def _record(self, changes: Sequence[KeyChange], revision: Revision) -> Revision:
        """Make the changes a revision of their own, and forget the oldest one."""
        if not changes:
            return revision
        revision = Revision(revision + 1)
        compacted = max(NEVER, revision - self._revisions_kept)
        self._sql.executemany(
            "INSERT INTO history VALUES (?, ?, ?)",
            [(revision, change.key, change.value) for change in changes],
        )
        self._sql.execute("DELETE FROM history WHERE revision <= ?", (compacted,))
        self._sql.execute(
            "UPDATE store SET revision = ?, compacted = max(compacted, ?)", (revision, compacted)
        )
        return revision

    def _one(self, query: str) -> Any:
        return self._sql.execute(query).fetchone()[0]

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)


def is_foreign(content: bytes) -> bool:
    """Whether a file is no store of ours, by its first bytes: without opening it.

    A store that is just being created does not say in its file whose it is, only in its journal.
    """
    if not content:
        return False
    application_id = int.from_bytes(content[_APPLICATION_ID_AT])
    return not content.startswith(_HEADER) or application_id not in {0, APPLICATION_ID}


def _open_file(path: Path, busy_timeout_ms: int) -> sqlite3.Connection:
    # While another process creates, recovers or lets go of the file, SQLite may say "locked"
    # without having waited at all, so waiting is done here as well.
    attempts = 1
    while True:
        try:
            return _connect(path, busy_timeout_ms)
        except UnicodeDecodeError as problem:  # in the text with which SQLite complains
            raise UsageRefused(f"{path} {_DAMAGED} ({problem.reason})") from problem
        except sqlite3.Error as problem:
            if _kind(problem) != "BUSY" or attempts == OPEN_ATTEMPTS_MAX:
                raise _refusal(path, problem) from problem
            attempts += 1
            time.sleep(OPEN_PAUSE_S)


def _connect(path: Path, busy_timeout_ms: int) -> sqlite3.Connection:
    attempt_s = busy_timeout_ms / OPEN_ATTEMPTS_MAX / 1000
    connection = sqlite3.connect(path, isolation_level=None, timeout=attempt_s)
    try:
        _prepare(connection, path)
        _check_content(connection, path)
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
        _keep_room(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _is_empty(connection):
        _switch_to_wal(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):  # of several processes that start at once, one creates it
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise UsageRefused(
            f"{path} is a SQLite database of another program: name another file for the"
            " coordination store"
        )
    file_format = connection.execute("PRAGMA user_version").fetchone()[0]
    if file_format > FORMAT:
        raise UsageRefused(
            f"{path} has format {file_format}, this version of Ottla reads up to {FORMAT}: start"
            " the newer version that wrote it"
        )


def _check_content(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file whose pages, indexes or revisions contradict each other.

    SQLite itself notices a damaged page only when it happens to read it, and a damaged journal
    never: it takes the part before the damage for everything there is.
    """
    connection.execute("BEGIN")
    try:
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        problem = found if found != "ok" else _contradiction(connection)
    finally:
        connection.execute("COMMIT")
    if problem is not None:
        raise UsageRefused(f"{path} {_DAMAGED} ({problem.splitlines()[-1]})")


def _contradiction(connection: sqlite3.Connection) -> str | None:
    """What is wrong with the tables, or the revisions: every one remembered must be there."""
    if _tables(connection) != _expected_tables():
        return "its tables are not as we made them"
    rows = connection.execute("SELECT revision, compacted FROM store").fetchall()
    if len(rows) != 1 or not all(isinstance(number, int) for number in rows[0]):
        return "it does not say its revision"
    revision, compacted = rows[0]
    count, first, last = connection.execute(
        "SELECT count(DISTINCT revision), min(revision), max(revision) FROM history"
    ).fetchone()
    expected = (revision - compacted, compacted + 1, revision) if count else (0, None, None)
    if (count, first, last) != expected or (not count and revision):
        return f"its history does not lead to revision {revision}"
    row = connection.execute(_NEWEST_DIFFERS, (revision,)).fetchone()
    return None if row is None else f"{row[0]!r} is not as revision {row[1]} left it"


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str, str, str | None]]:
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name != 'room'"
    )
    return set(rows.fetchall())


def _expected_tables() -> set[tuple[str, str, str, str | None]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _tables(connection)


def _keep_room(connection: sqlite3.Connection) -> None:
    """Take room now that a full disk cannot give later: topics must be deletable then.

    SQLite writes over what it has: the journal keeps its size until the file is closed, and the
    file keeps its free pages. So both are made large once, and the journal is emptied into the
    file long before it would have to grow. A start waits for it, some ten milliseconds: taken
    later, the room was sometimes gone, for a client fills a small disk in less than a second.
    """
    connection.execute("PRAGMA synchronous = NORMAL")  # zeros may be lost; checkpoints still sync
    connection.execute(f"PRAGMA wal_autocheckpoint = {ROOM_PAGES // 2}")
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DROP TABLE IF EXISTS room")  # a crash, or a process beside us
        connection.execute("CREATE TABLE room (zeros BLOB NOT NULL)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM_PAGES * page_bytes,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint").fetchall()
        connection.execute("DROP TABLE IF EXISTS room")
    except sqlite3.OperationalError as problem:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if _kind(problem) not in {"FULL", "BUSY"}:
            raise  # full already, or another process is at it: it can wait for the next start


def _is_empty(connection: sqlite3.Connection) -> bool:
    count: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return count == 0


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UsageRefused(
            f"{path} lies on a file system without shared memory, which several brokers need: put"
            " the coordination store on a local disk"
        )


def _refusal(path: Path, problem: sqlite3.Error) -> UsageRefused:
    match _kind(problem):
        case "CORRUPT":
            text = f"{_DAMAGED} ({problem})"
        case "NOTADB":
            text = "is not a coordination store: name another file, or move this one away"
        case "BUSY" | "LOCKED":
            text = "is locked by another program: close what has opened it, then start again"
        case "CANTOPEN":
            text = "cannot be opened: create its directory and allow this user to write there"
        case "READONLY" | "PERM":
            text = "cannot be written: allow this user to write the file and its directory"
        case _:
            text = f"does not work as a coordination store ({problem})"
    return UsageRefused(f"{path} {text}")


def _kind(problem: sqlite3.Error) -> str:
    """SQLite's primary result code: BUSY for SQLITE_BUSY_RECOVERY."""
    name: str = getattr(problem, "sqlite_errorname", "SQLITE_ERROR")
    return name.split("_")[1]
