"""A data directory with one fault in its metadata, and whether a broker deals with it honestly.

Every acknowledged record is readable, or there is an error that names what is wrong, and then no
byte of a record is gone from the disk. No offset is given out twice, no aborted record is served
as a committed one. Never silence, never a traceback.
"""

import asyncio
import logging
import shutil
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.group_offsets import commit_offsets
from ottla.client.producer import IdempotentProducer
from ottla.client.transactional_producer import TransactionalProducer
from ottla.config import BrokerConfig
from ottla.errors import ApiError, CorruptBatch, UsageRefused
from ottla.model import Endpoint, Offset, TimestampMs, TopicPartition
from ottla.records.batch import Record, batches, pack, records
from ottla.replication.partition import LeaderPartition
from ottla.storage.index import AbortedTransaction
from ottla.storage.log import Log

LOOPBACK: Final = Endpoint("127.0.0.1", 0)
_PAGE_BYTES: Final = 4096
_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_FRAME_SAMPLE: Final = 64  # bytes of a journal's page: SQLite checks all of them in the same way
_READ_BYTES: Final = 1 << 20
_TRANSACTIONS: Final = 9  # of which every third commits; they fill more than one segment
_SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_UNTOUCHED: Final = (".log", ".reserve", ".lock", "-shm")  # records, and files without content

Read = Mapping[TopicPartition, Mapping[int, bytes | None]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A directory of a broker that was stopped, or killed, and what it had acknowledged."""

    path: Path
    acked: Read
    aborted: Mapping[TopicPartition, list[AbortedTransaction]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One flipped bit, or a file or directory that is gone."""

    file: Path  # in the directory
    at: int | None
    bit: int = 0

    def strike(self, data: Path) -> None:
        path = data / self.file
        if path.is_dir():
            shutil.rmtree(path)
            return
        if self.at is None:
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        content[self.at] ^= 1 << self.bit
        path.write_bytes(content)

    def __str__(self) -> str:
        what = "removed" if self.at is None else f"byte {self.at} bit {self.bit}"
        return f"{self.file} {what}"


@dataclass(slots=True)
class Outcome:
    """What a broker did with a damaged directory."""

    refused: str | None = None
    lines: list[logging.LogRecord] = field(default_factory=list)
    read: dict[TopicPartition, dict[int, bytes | None]] = field(default_factory=dict)
    aborted: dict[TopicPartition, list[AbortedTransaction]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    corrupt: set[TopicPartition] = field(default_factory=set)
    defect: str | None = None


def options(data: Path) -> ServeOptions:
    return ServeOptions(data=data, listen=LOOPBACK, config=BrokerConfig.parse(_SETTINGS))


async def prepare(work: Path) -> tuple[Prepared, Prepared]:
    """The same broker's directory, killed after its second start, and then stopped."""
    data = work / "data"
    broker = await Broker.start(options(data), Environment())
    async with Client([broker.address]) as client:
        await _fill(client)
    await broker.stop()
    broker = await Broker.start(options(data), Environment())
    async with Client([broker.address]) as client:
        await _change(client, broker)
    logs = {tp: partition.log for tp, partition in _leaders(broker).items()}
    acked = {tp: read_log(log) for tp, log in logs.items()}
    aborted = {tp: _aborted(log) for tp, log in logs.items()}
    assert len(aborted[TopicPartition("orders", 0)]) == _TRANSACTIONS * 2 // 3
    killed = shutil.copytree(data, work / "killed")  # what kill -9 would leave
    await broker.stop()
    stopped = data.rename(work / "stopped")
    for path in (killed, stopped):
        (path / ".reserve").unlink()  # a megabyte to copy each time, of zeros
    return Prepared(killed, acked, aborted), Prepared(stopped, acked, aborted)


def _aborted(log: Log) -> list[AbortedTransaction]:
    """What a reader of committed records is told to skip."""
    return log.aborted_transactions(log.start_offset, log.end_offset)


async def _fill(client: Client) -> None:
    """Topics with several segments, an idempotent producer, aborted transactions, offsets."""
    small = {"segment.bytes": "1024", "index.interval.bytes": "128"}
    await admin.create_topic(client, "orders", partitions=2, settings=small)
    await admin.create_topic(client, "doomed", partitions=1, settings={})
    producer = await IdempotentProducer.open(client)
    for number in range(24):
        await producer.write(TopicPartition("orders", number % 2), _letters(number))
    transaction = await TransactionalProducer.open(client, "mover")
    for number in range(_TRANSACTIONS):
        await transaction.write_packed(TopicPartition("orders", 0), pack(_letters(number)))
        await (transaction.abort() if number % 3 else transaction.commit())
    await commit_offsets(client, "readers", {TopicPartition("orders", 0): Offset(5)})


async def _change(client: Client, broker: Broker) -> None:
    """Changes of the store that only its journal has, and records that were deleted."""
    await admin.create_topic(client, "late", partitions=1, settings={})
    producer = await IdempotentProducer.open(client)
    for tp in (TopicPartition("late", 0), TopicPartition("orders", 1)):
        await producer.write(tp, _letters(7))
    await admin.delete_topic(client, "doomed")
    _leaders(broker)[TopicPartition("orders", 1)].log.advance_start(Offset(3))
    await broker._replicas.commit_deletions()
    await broker._replicas.chores.checkpoint()


def _letters(number: int) -> list[Record]:
    now_ms = TimestampMs(1_700_000_000_000 + number * 1000)
    return [
        Record(timestamp_ms=now_ms, value=f"record {number}.{item}".encode()) for item in (0, 1)
    ]


def _leaders(broker: Broker) -> dict[TopicPartition, LeaderPartition]:
    return {TopicPartition(*key): found for key, found in broker._replicas.leaders.items()}


def read_log(log: Log) -> dict[int, bytes | None]:
    """Every record of a log by its offset, each looked for by itself, as a consumer would."""
    found: dict[int, bytes | None] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, log.end_offset, _READ_BYTES, at_least_one=True)
        assert part is not None
        for record in _records(log.read_bytes(part)):
            found[record.offset] = record.value
        offset = Offset(max(found) + 1)
    return found


def _records(data: bytes) -> Iterator[Record]:
    for _, content in batches(data):
        yield from records(content, decompressed_bytes_max=_READ_BYTES)


def faults(prepared: Prepared, rng: Random) -> list[Fault]:
    """Every byte of every small file, one bit each, and every file and directory gone."""
    found = []
    for path in sorted(prepared.path.rglob("*")):
        if path.name.endswith(_UNTOUCHED):
            continue
        file = path.relative_to(prepared.path)
        found.append(Fault(file, None))
        if path.is_dir():
            continue
        found += [Fault(file, at, rng.randrange(8)) for at in _places(path, rng)]
    return found


def _places(path: Path, rng: Random) -> Iterator[int]:
    content = path.read_bytes()
    if path.name == "cluster.sqlite":
        for page in range(0, len(content), _PAGE_BYTES):
            if page == 0 or b"topics/" in content[page : page + _PAGE_BYTES]:
                yield from range(page, page + _PAGE_BYTES)
    elif path.name == "cluster.sqlite-wal":
        yield from _journal_places(content, rng)
    else:
        yield from range(len(content))


def _journal_places(content: bytes, rng: Random) -> Iterator[int]:
    """The header, and of every page that is in use its header and a sample."""
    yield from range(_WAL_HEADER_BYTES)
    salt = content[16:24]
    at = _WAL_HEADER_BYTES
    while content[at + 8 : at + 16] == salt and at < len(content):
        yield from range(at, at + _FRAME_HEADER_BYTES)
        page = at + _FRAME_HEADER_BYTES
        yield from sorted(rng.sample(range(page, page + _PAGE_BYTES), _FRAME_SAMPLE))
        at = page + _PAGE_BYTES


async def start_damaged(data: Path) -> Outcome:
    """Start a broker, read everything that it serves, stop it; what it said meanwhile."""
    outcome = Outcome()
    handler = _Collecting(outcome.lines)
    logger = logging.getLogger("ottla")
    logger.addHandler(handler)
    try:
        broker = await Broker.start(options(data), Environment())
    except UsageRefused as refused:
        outcome.refused = str(refused)
        return outcome
    except Exception:  # noqa: BLE001  whatever it is, it is not what an operator should see
        outcome.defect = traceback.format_exc()
        return outcome
    finally:
        logger.removeHandler(handler)
    logger.addHandler(handler)
    try:
        for tp, partition in _leaders(broker).items():
            _read_honestly(outcome, tp, partition.log)
            outcome.aborted[tp] = _aborted(partition.log)
            outcome.ends[tp] = partition.log.end_offset
    finally:
        await broker.stop()
        logger.removeHandler(handler)
    return outcome


def _read_honestly(outcome: Outcome, tp: TopicPartition, log: Log) -> None:
    found = outcome.read.setdefault(tp, {})
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            part = log.read(offset, log.end_offset, _READ_BYTES, at_least_one=True)
            assert part is not None
            for record in _records(log.read_bytes(part)):
                found[record.offset] = record.value
            offset = Offset(max(found) + 1)
        except CorruptBatch:
            outcome.corrupt.add(tp)
            offset = Offset(offset + 1)
        except ApiError:
            outcome.defect = traceback.format_exc()
            return


class _Collecting(logging.Handler):
    def __init__(self, lines: list[logging.LogRecord]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record)


def verdict(prepared: Prepared, fault: Fault, data: Path, outcome: Outcome) -> str | None:
    """What is wrong with how the broker behaved; None if nothing is."""
    if outcome.defect is not None:
        return f"a traceback instead of a sentence: {outcome.defect}"
    for line in outcome.lines:
        if line.exc_info is not None:
            return f"a traceback in the log: {line.getMessage()}"
    if gone := _lost_bytes(prepared.path, data, fault.file):
        return f"bytes of records are gone: {gone}"
    if outcome.refused is not None:
        named = (fault.file.name, "coordination store", fault.file.name.removesuffix("-wal"))
        is_named = any(name in outcome.refused for name in named)
        return None if is_named else f"refused without naming {fault.file}: {outcome.refused}"
    errors = [vars(line) for line in outcome.lines if line.levelno >= logging.ERROR]
    for tp, acked in prepared.acked.items():
        read = outcome.read.get(tp, {})
        missing = [offset for offset, value in acked.items() if read.get(offset, b"?") != value]
        said = any(str(tp) in (line.get("tp"), line.get("directory")) for line in errors)
        if missing and not said:
            return f"{tp} has lost {missing[:5]} and nobody said so"
        if tp in outcome.ends and outcome.ends[tp] <= max(acked, default=-1):
            return f"{tp} gives out offset {outcome.ends[tp]} twice"
        wanted = [] if fault.file == Path(str(tp)) else prepared.aborted[tp]
        if tp in outcome.aborted and outcome.aborted[tp] != wanted:
            return f"{tp} has {outcome.aborted[tp]} aborted instead of {wanted}"
    return None


def _lost_bytes(before: Path, after: Path, struck: Path) -> str | None:
    """The first segment whose bytes are nowhere any more, but for those that the fault took."""
    kept = [path.read_bytes() for path in after.rglob("*.log*")]
    for path in before.rglob("*.log"):
        if path.is_relative_to(before / struck):
            continue
        content = path.read_bytes()
        if content and not any(other.startswith(content) for other in kept):
            return str(path.relative_to(before))
    return None


def run_case(prepared: Prepared, fault: Fault, work: Path) -> tuple[Outcome, str | None]:
    """One case from start to end, in a copy that goes again."""
    # SQLite lets go of a file that it could not read when the exception has gone, not before.
    with TemporaryDirectory(dir=work, ignore_cleanup_errors=True) as directory:
        data = shutil.copytree(prepared.path, Path(directory) / "case")
        fault.strike(data)
        outcome = asyncio.run(start_damaged(data))
        return outcome, verdict(prepared, fault, data, outcome)
