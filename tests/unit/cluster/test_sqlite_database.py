"""The tables of a SQLite store: history without gaps, leases by the machine's clock, durability."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.cluster.sqlite_database import BATCHES_PER_READ, Database
from ottla.cluster.sqlite_file import open_file
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
)
from ottla.model import TimestampMs

NORMAL, FULL = 1, 2  # of SQLite's `synchronous`


class HandClock:
    """Time that passes when the test says so."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(0)  # leases do not depend on the time of day

    def monotonic_s(self) -> float:
        return self.now_s


class Bench:
    """A database, its clock, and the statements that it has run since it was last asked."""

    def __init__(self, path: Path, clock: HandClock, revisions_kept: int) -> None:
        self.clock = clock
        self.connection = open_file(path, busy_timeout_ms=1000)
        self.database = Database(self.connection, clock, revisions_kept)
        self._statements: list[str] = []
        self.connection.set_trace_callback(self._statements.append)

    def statements(self) -> list[str]:
        found = self._statements.copy()
        self._statements.clear()
        return found

    def put(self, key: str, value: bytes = b"", lease: LeaseId | None = None) -> Revision:
        return self.database.commit([Put(key, value, lease)], [])

    @property
    def synchronous(self) -> int:
        (mode,) = self.connection.execute("PRAGMA synchronous").fetchone()
        return int(mode)


OpenBench = Callable[..., Bench]


@pytest.fixture
def open_bench(tmp_path: Path) -> Iterator[OpenBench]:
    """Opens databases on one file, as several processes do."""
    with contextlib.ExitStack() as opened:

        def open_one(clock: HandClock | None = None, revisions_kept: int = 1000) -> Bench:
            bench = Bench(tmp_path / "store.db", clock or HandClock(), revisions_kept)
            opened.callback(bench.database.close)
            return bench

        yield open_one


@pytest.fixture
def bench(open_bench: OpenBench) -> Bench:
    return open_bench()


# Entries


def test_a_commit_is_one_revision_of_all_it_writes(bench: Bench) -> None:
    database = bench.database
    assert database.commit([Put("a", b"1"), Put("b", b"2")], []) == 1
    assert database.commit([Delete("a"), Put("b", b"3")], []) == 2
    assert database.range("") == Snapshot(Revision(2), (Entry("b", b"3", Revision(2)),))
    assert database.get("a") == Snapshot(Revision(2), ())


def test_a_range_ends_where_its_prefix_does(bench: Bench) -> None:
    for key in ("topics", "topics/", "topics/a", "topics/\uffff", "topics0", "tombstones/a"):
        bench.put(key)
    found = bench.database.range("topics/").entries
    assert [entry.key for entry in found] == ["topics/", "topics/a", "topics/\uffff"]


def test_a_commit_that_changes_nothing_has_no_revision(bench: Bench) -> None:
    bench.put("a")
    assert bench.database.commit([Delete("b")], [Compare("a", Revision(1))]) == 1
    assert bench.database.commit([], []) == 1
    assert bench.database.history("", Revision(1)) == []


def test_a_refused_commit_leaves_no_trace_and_no_transaction_open(bench: Bench) -> None:
    bench.put("a", b"1")
    with pytest.raises(Conflict, match="a was changed by another process"):
        bench.database.commit([Put("a", b"2"), Put("b", b"")], [Compare("a", NEVER)])
    with pytest.raises(LeaseLost, match="lease 7 has ended, nothing was written"):
        bench.database.commit([Put("b", b""), Put("c", b"", LeaseId(7))], [])
    assert not bench.connection.in_transaction
    assert bench.database.range("") == Snapshot(Revision(1), (Entry("a", b"1", Revision(1)),))
    assert bench.put("a", b"2") == 2


def test_a_failed_commit_of_sqlite_leaves_no_transaction_open(
    bench: Bench, open_bench: OpenBench
) -> None:
    other = open_bench()
    other.connection.execute("BEGIN IMMEDIATE")
    bench.connection.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        bench.put("a")
    other.connection.execute("ROLLBACK")
    assert bench.put("a") == 1


def test_an_error_after_which_sqlite_has_rolled_back_by_itself_is_the_one_reported(
    bench: Bench,
) -> None:
    """As it does when the disk is full."""
    bench.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON entries"
        " BEGIN SELECT RAISE(ROLLBACK, 'the disk is full'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
        bench.put("a")
    bench.connection.execute("DROP TRIGGER full")
    assert bench.put("a") == 1


# History


def test_history_is_read_in_parts_without_gaps(bench: Bench) -> None:
    count = BATCHES_PER_READ + 5
    for number in range(count):
        bench.put("a" if number % 2 else "b", b"%d" % number)
    first = bench.database.history("", NEVER)
    assert [batch.revision for batch in first] == list(range(1, BATCHES_PER_READ + 1))
    rest = bench.database.history("", first[-1].revision)
    assert [batch.revision for batch in rest] == list(range(BATCHES_PER_READ + 1, count + 1))
    assert rest[-1].changes == (KeyChange("b", b"104"),)


def test_a_revision_outside_the_prefix_is_an_empty_batch(bench: Bench) -> None:
    bench.database.commit([Put("a/1", b"x"), Put("b/1", b"y"), Delete("c")], [])
    bench.put("b/2")
    assert bench.database.history("a/", NEVER) == [
        ChangeBatch(Revision(1), (KeyChange("a/1", b"x"),)),
        ChangeBatch(Revision(2), ()),
    ]


def test_only_the_newest_revisions_are_kept(open_bench: OpenBench) -> None:
    bench = open_bench(revisions_kept=3)
    for number in range(5):
        bench.put("a", b"%d" % number)
    assert [batch.revision for batch in bench.database.history("", Revision(2))] == [3, 4, 5]
    with pytest.raises(Compacted, match="revisions up to 2 are compacted, 1 was requested"):
        bench.database.history("", Revision(1))
    (count,) = bench.connection.execute("SELECT count(*) FROM history").fetchone()
    assert count == 3, "the file does not grow"


def test_of_revisions_with_thousands_of_changes_only_a_few_are_kept(bench: Bench) -> None:
    for number in range(20):
        bench.database.commit([Put(f"{key:04}", b"%d" % number) for key in range(2000)], [])
    kept = [batch.revision for batch in bench.database.history("", Revision(16))]
    assert kept == [17, 18, 19, 20]
    with pytest.raises(Compacted, match="revisions up to 15 are compacted"):
        bench.database.history("", Revision(14))
    bench.database.commit([Put(f"{key:05}", b"") for key in range(30_000)], [])
    assert [batch.revision for batch in bench.database.history("", Revision(17))] == [
        18,
        19,
        20,
        21,
    ], "a watch that is little behind needs no read of everything"


def test_history_does_not_grow_back_where_another_process_keeps_more(
    open_bench: OpenBench,
) -> None:
    few, many = open_bench(revisions_kept=1), open_bench(revisions_kept=100)
    for bench in (few, few, few, many):
        bench.put("a")
    with pytest.raises(Compacted, match="revisions up to 2 are compacted"):
        many.database.history("", Revision(1))
    assert [batch.revision for batch in many.database.history("", Revision(2))] == [3, 4]


# Leases


def test_a_lease_lives_as_long_as_it_is_kept_and_its_keys_with_it(bench: Bench) -> None:
    lease = bench.database.grant(10_000)
    bench.put("brokers/1", b"", lease)
    for _ in range(3):
        bench.clock.now_s += 9.9
        bench.database.keep_alive(lease)
    bench.clock.now_s += 10
    with pytest.raises(LeaseLost, match="was not kept alive in time"):
        bench.database.keep_alive(lease)
    assert bench.database.poll() == 2
    assert bench.database.get("brokers/1").entries == ()


def test_keys_of_ended_leases_are_changes_of_one_revision_in_order(bench: Bench) -> None:
    leases = [bench.database.grant(ttl_ms) for ttl_ms in (2000, 1000)]
    for key, lease in (("c", leases[0]), ("b", leases[0]), ("a", leases[1])):
        bench.put(key, b"", lease)
    bench.clock.now_s += 2
    assert bench.database.poll() == 4
    (ended,) = bench.database.history("", Revision(3))
    assert ended.changes == (KeyChange("b", None), KeyChange("c", None), KeyChange("a", None))


def test_a_commit_ends_expired_leases_before_it_compares(bench: Bench) -> None:
    lease = bench.database.grant(1000)
    bench.put("brokers/1", b"old", lease)
    bench.clock.now_s += 1
    assert bench.database.commit([Put("brokers/1", b"new")], [Compare("brokers/1", NEVER)]) == 3
    assert [batch.changes for batch in bench.database.history("", Revision(1))] == [
        (KeyChange("brokers/1", None),),
        (KeyChange("brokers/1", b"new"),),
    ]


@pytest.mark.parametrize("now_s", [0.5, 989.9])
def test_a_lease_of_an_earlier_boot_has_ended(open_bench: OpenBench, now_s: float) -> None:
    """It would end later than any that is granted now."""
    before = open_bench(HandClock(1000.0))
    lease = before.database.grant(10_000)
    before.put("brokers/1", b"", lease)
    after = open_bench(HandClock(now_s))
    with pytest.raises(LeaseLost):
        after.database.keep_alive(lease)
    assert after.database.poll() == 2
    assert after.database.get("brokers/1").entries == ()


def test_a_revoked_lease_ends_its_keys_and_twice_changes_nothing(bench: Bench) -> None:
    lease = bench.database.grant(1000)
    bench.put("a", b"", lease)
    assert bench.database.revoke(lease) == 2
    assert bench.database.revoke(lease) == 2
    with pytest.raises(LeaseLost):
        bench.database.keep_alive(lease)


def test_a_key_that_is_written_again_leaves_its_lease(bench: Bench) -> None:
    lease = bench.database.grant(1000)
    bench.put("a", b"", lease)
    bench.put("a")
    assert bench.database.revoke(lease) == 2, "nothing was under it"


def test_ids_of_leases_are_never_given_out_again(bench: Bench) -> None:
    first = bench.database.grant(1000)
    bench.database.revoke(first)
    assert bench.database.grant(1000) > first


# Polling


def test_a_poll_of_an_unchanged_file_reads_no_table(bench: Bench) -> None:
    bench.put("a")
    assert bench.database.poll() == 1
    bench.statements()
    assert bench.database.poll() == 1
    assert bench.statements() == ["PRAGMA data_version"]


def test_a_poll_sees_what_others_and_this_process_have_committed(
    bench: Bench, open_bench: OpenBench
) -> None:
    other = open_bench()
    for number, one in enumerate((bench, other, other, bench), start=1):
        one.put("a")
        assert bench.database.poll() == number
        assert other.database.poll() == number


def test_a_poll_ends_leases_when_they_expire_though_nothing_else_changes(bench: Bench) -> None:
    lease = bench.database.grant(1000)
    bench.put("a", b"", lease)
    bench.put("b", b"", bench.database.grant(3000))
    assert bench.database.poll() == 2
    bench.clock.now_s += 1
    assert bench.database.poll() == 3
    assert [entry.key for entry in bench.database.range("").entries] == ["b"]
    bench.clock.now_s += 2
    assert bench.database.poll() == 4


# Durability


def test_commits_wait_for_the_disk_and_leases_do_not(bench: Bench) -> None:
    """A broker whose lease is lost with the power has lost everything else that it had open."""
    bench.put("a")
    assert bench.synchronous == FULL
    lease = bench.database.grant(1000)
    assert bench.synchronous == NORMAL
    bench.put("a")
    bench.database.keep_alive(lease)
    assert bench.synchronous == NORMAL
    bench.database.revoke(lease)
    assert bench.synchronous == FULL
