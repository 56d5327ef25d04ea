"""Opening the file of a SQLite coordination store: creation, format check, integrity check."""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

from ottla.errors import UsageRefused

APPLICATION_ID: Final = 0x4F74746C  # "Ottl", in the header of the file
FORMAT: Final = 1
OPEN_ATTEMPTS_MAX: Final = 20
OPEN_PAUSE_S: Final = 0.005
RESERVED_PAGES: Final = 256  # 1 MiB, in the journal and in the file
_HEADER: Final = b"SQLite format 3\0"
_APPLICATION_ID_AT: Final = slice(68, 72)

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

# Entries that differ from the newest revision of their key in the history, or newer than the store.
_NEWEST_DIFFERS: Final = """
SELECT newest.key, newest.revision FROM (
    SELECT key, value, max(revision) AS revision FROM history GROUP BY key
) AS newest LEFT JOIN entries ON entries.key = newest.key
WHERE entries.value IS NOT newest.value
    OR (entries.key IS NOT NULL AND entries.mod_revision != newest.revision)
UNION ALL SELECT key, mod_revision FROM entries WHERE mod_revision > ?
"""
_DAMAGED: Final = (
    "is damaged: restore a copy of it, or move it and its -wal away and run"
    " `ottla log accept-store DIR` to recover without it"
)


def is_foreign(content: bytes) -> bool:
    """True if a file is no coordination store, judged by its first bytes without opening it.

    A store that is just being created has its application id in the journal only.
    """
    if not content:
        return False
    application_id = int.from_bytes(content[_APPLICATION_ID_AT])
    return not content.startswith(_HEADER) or application_id not in {0, APPLICATION_ID}


def open_file(path: Path, busy_timeout_ms: int, *, is_synced: bool = True) -> sqlite3.Connection:
    """Open or create the file; without `is_synced` a power cut may damage it."""
    # While another process creates, recovers or lets go of the file, SQLite may say "locked"
    # without having waited at all, so waiting is done here as well.
    attempts = 1
    while True:
        try:
            return _connect(path, busy_timeout_ms, is_synced=is_synced)
        except UnicodeDecodeError as problem:  # in the text of SQLite's error
            raise UsageRefused(f"{path} {_DAMAGED} ({problem.reason})") from problem
        except sqlite3.Error as problem:
            if _kind(problem) != "BUSY" or attempts == OPEN_ATTEMPTS_MAX:
                raise _refusal(path, problem) from problem
            attempts += 1
            time.sleep(OPEN_PAUSE_S)


def _connect(path: Path, busy_timeout_ms: int, *, is_synced: bool) -> sqlite3.Connection:
    attempt_s = busy_timeout_ms / OPEN_ATTEMPTS_MAX / 1000
    connection = sqlite3.connect(path, isolation_level=None, timeout=attempt_s)
    try:
        if not is_synced:
            connection.execute("PRAGMA synchronous = OFF")
        _prepare(connection, path)
        _check_content(connection, path)
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
        if is_synced:
            # Zeros may be lost; checkpoints still sync.
            connection.execute("PRAGMA synchronous = NORMAL")
        _reserve_space(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _is_empty(connection):
        _switch_to_wal(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):  # of several processes that start at once, one creates the tables
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

    SQLite itself notices a damaged page only when it reads it, and a damaged journal never: it
    treats the part before the damage as the whole.
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
    """The first contradiction in tables or revisions; None if the content is consistent."""
    if _tables(connection) != _expected_tables():
        return "unexpected tables"
    rows = connection.execute("SELECT revision, compacted FROM store").fetchall()
    if len(rows) != 1 or not all(isinstance(number, int) for number in rows[0]):
        return "its revision is missing"
    revision, compacted = rows[0]
    count, first, last = connection.execute(
        "SELECT count(DISTINCT revision), min(revision), max(revision) FROM history"
    ).fetchone()
    expected = (revision - compacted, compacted + 1, revision) if count else (0, None, None)
    if (count, first, last) != expected or (not count and revision):
        return f"its history does not end at revision {revision}"
    row = connection.execute(_NEWEST_DIFFERS, (revision,)).fetchone()
    return None if row is None else f"{row[0]!r} differs from its history at revision {row[1]}"


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str, str, str | None]]:
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name != 'room'"
    )
    return set(rows.fetchall())


def _expected_tables() -> set[tuple[str, str, str, str | None]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _tables(connection)


def _reserve_space(connection: sqlite3.Connection) -> None:
    """Reserve disk space, so that topics can be deleted when the disk is full.

    SQLite overwrites what it has: the journal keeps its size until the file is closed, and the
    file keeps its free pages. So both are made large once, and the journal is checkpointed into
    the file long before it would have to grow. A start waits for it, some ten milliseconds: later
    the space was sometimes gone, for a client fills a small disk in less than a second.
    """
    connection.execute(f"PRAGMA wal_autocheckpoint = {RESERVED_PAGES // 2}")
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DROP TABLE IF EXISTS room")  # left by a crash or another process
        connection.execute("CREATE TABLE room (zeros BLOB NOT NULL)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (RESERVED_PAGES * page_bytes,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint").fetchall()
        connection.execute("DROP TABLE IF EXISTS room")
    except sqlite3.OperationalError as problem:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if _kind(problem) not in {"FULL", "BUSY"}:
            raise  # full, or locked by another process: the next start reserves it


def _is_empty(connection: sqlite3.Connection) -> bool:
    count: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return count == 0


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UsageRefused(
            f"{path} is on a file system without shared memory, which several brokers need: put"
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
