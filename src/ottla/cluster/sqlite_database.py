"""The tables of a SQLite coordination store: entries, history of revisions, leases.

Leases are measured in the machine's monotonic time, which all its processes share, which stands
still while a laptop sleeps, and which cannot be set. It begins anew with every boot; a lease of
an earlier boot is recognised by ending later than any lease granted now could.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

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
    Write,
)

BATCHES_PER_READ: Final = 100
# A start writes every partition, and the next one checks all of the history.
CHANGES_KEPT: Final = 10_000
LARGE_REVISIONS_KEPT: Final = 4  # however many changes they have
_PREFIX_END: Final = "\U0010ffff"  # sorts after every character that keys are made of


@dataclass(slots=True)
class _Version:
    """The file's state at the last poll; an equal data version means that it is unchanged."""

    data_version: int = -1
    revision: Revision = NEVER
    next_expiry_ms: int | None = None


class Database:
    """The store's operations as SQL. Synchronous, and used by one thread only."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock,
        revisions_kept: int,
        *,
        is_synced: bool = True,
    ) -> None:
        self._sql = connection
        self._is_synced = is_synced
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
                    raise Conflict(f"{compare.key} was changed by another process")
            return self._write(writes, revision)

    def history(self, prefix: str, after: Revision) -> list[ChangeBatch]:
        """The next batches after revision `after`, at most `BATCHES_PER_READ`."""
        with self._reading():
            compacted = self._one("SELECT compacted FROM store")
            if after < compacted:
                raise Compacted(f"revisions up to {compacted} are compacted, {after} was requested")
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
            assert cursor.lastrowid is not None, "an insert sets the row id"
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
        """The newest revision, after expired leases have been ended."""
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
        """A read transaction: everything read inside is of one revision, which is yielded."""
        self._sql.execute("BEGIN")
        try:
            yield Revision(self._one("SELECT revision FROM store"))
        finally:
            self._sql.execute("COMMIT")

    @contextlib.contextmanager
    def _writing(self, *, durable: bool) -> Iterator[Revision]:
        """A write transaction, rolled back on an error; yields the revision before it.

        Leases need not outlive a power cut, so keeping one alive does not wait for the disk.
        """
        self._seen = _Version()  # SQLite's data version does not count this connection's writes
        if self._is_synced:
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
            raise LeaseLost(f"lease {lease} has ended, nothing was written")

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
        """Write the changes as the next revision, and drop the oldest from the history."""
        if not changes:
            return revision
        revision = Revision(revision + 1)
        self._sql.executemany(
            "INSERT INTO history VALUES (?, ?, ?)",
            [(revision, change.key, change.value) for change in changes],
        )
        compacted = max(NEVER, revision - self._revisions_kept, self._over_changes(revision))
        self._sql.execute("DELETE FROM history WHERE revision <= ?", (compacted,))
        self._sql.execute(
            "UPDATE store SET revision = ?, compacted = max(compacted, ?)", (revision, compacted)
        )
        return revision

    def _over_changes(self, revision: Revision) -> int:
        """The last revision before the newest changes of which the history keeps enough."""
        row = self._sql.execute(
            "SELECT revision FROM history WHERE rowid <= (SELECT max(rowid) FROM history) - ?"
            " ORDER BY rowid DESC LIMIT 1",
            (CHANGES_KEPT,),
        ).fetchone()
        return NEVER if row is None else min(row[0], revision - LARGE_REVISIONS_KEPT)

    def _one(self, query: str) -> Any:
        return self._sql.execute(query).fetchone()[0]

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)
