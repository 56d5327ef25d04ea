"""Whatever is written and however often it is compacted, readers miss nothing that counts."""

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from fakes import build
from fakes.logs import segments_of
from fakes.memory_files import MachineStopped, MemoryFiles
from ottla.config import TopicConfig
from ottla.model import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from ottla.records.batch import (
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Marker,
    MarkerKind,
    Record,
    batches,
    build_batch,
    read_marker,
    records,
)
from ottla.records.compression import Codec
from ottla.storage.cleaner import Cleaner
from ottla.storage.compaction_pass import KEY_COST_BYTES
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.log import Log
from ottla.storage.recovery_scan import EVERYTHING
from sizes import examples

KEYS = [b"a", b"b", b"c", b"long key, remembered by its digest", b""]
PLAIN = -1
IDEMPOTENT = [1, 2]
TRANSACTIONAL = [7, 8]
DELETE_RETENTION_MS = 1000


@dataclass
class Written:
    """One record as it was written, and whether its transaction came to anything."""

    record: Record
    producer_id: int
    is_decided: bool
    is_aborted: bool = False


class History:
    """A log, and a model that remembers every record ever written, by its offset."""

    def __init__(self, memory_keys: int, segment_bytes: int) -> None:
        self.files = MemoryFiles()
        self.config = TopicConfig(
            cleanup_policy=("compact",),
            segment_bytes=segment_bytes,
            index_interval_bytes=150,
            delete_retention_ms=DELETE_RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.memory_bytes = memory_keys * KEY_COST_BYTES
        self.now_ms = int(build.NOW_MS)
        self.model: dict[int, Written] = {}
        self.markers: list[int] = []
        self.end = 0
        self.epoch = 0
        self.epoch_starts: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.producer_epochs: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.open(0)

    def open(self, recovery_point: int) -> None:
        self.log = build.log(self.files, self.config, recovery_point=recovery_point)

    # Writing

    def write_once(
        self, content: list[tuple[bytes, int | None]], producer_id: int, codec: Codec
    ) -> None:
        found = [
            Record(
                offset=Offset(self.end + number),
                timestamp_ms=TimestampMs(self.now_ms - 3 * number),
                key=key,
                value=None if size is None else b"%d:%d:" % (self.end, number) + bytes(size),
                headers=(("h", b"x"),) if number % 2 else (),
            )
            for number, (key, size) in enumerate(content)
        ]
        is_transactional = producer_id in TRANSACTIONAL
        sequence = self.sequences.get(producer_id, 0)
        batch = build_batch(
            found,
            codec=codec,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(self.producer_epochs.get(producer_id, 0))
            if producer_id >= 0
            else NO_PRODUCER_EPOCH,
            base_sequence=Sequence(sequence if producer_id >= 0 else -1),
            is_transactional=is_transactional,
        )
        self.log.append_as_leader(batch, LeaderEpoch(self.epoch), TimestampMs(self.now_ms))
        self.epoch_starts.setdefault(self.epoch, self.end)
        self.sequences[producer_id] = sequence + len(found)
        for record in found:
            self.model[record.offset] = Written(record, producer_id, not is_transactional)
        if is_transactional:
            self.open_transactions.add(producer_id)
        self.end += len(found)
        self.log.flush()

    def end_transaction(self, kind: MarkerKind, bumps_epoch: bool, which: int) -> None:
        candidates = sorted(self.open_transactions)
        producer_id = candidates[which % len(candidates)]
        epoch = self.producer_epochs.get(producer_id, 0) + bumps_epoch
        self.log.append_marker(
            Marker(kind, 0),
            ProducerId(producer_id),
            ProducerEpoch(epoch),
            LeaderEpoch(self.epoch),
            TimestampMs(self.now_ms),
        )
        self.log.flush()
        if bumps_epoch:
            self.producer_epochs[producer_id] = epoch
            self.sequences[producer_id] = 0
        self.epoch_starts.setdefault(self.epoch, self.end)
        self.open_transactions.discard(producer_id)
        for written in self.model.values():
            if written.producer_id == producer_id and not written.is_decided:
                written.is_decided = True
                written.is_aborted = kind is MarkerKind.ABORT
        self.markers.append(self.end)
        self.end += 1

    def live_on(self, rng: Random, count: int) -> None:
        """A stretch of ordinary life."""
        for _ in range(count):
            match rng.randrange(12):
                case 0:
                    self.roll()
                case 1:
                    self.change_leader()
                case 2 | 3 | 4 if self.open_transactions:
                    kind = rng.choice([MarkerKind.ABORT, MarkerKind.COMMIT])
                    self.end_transaction(kind, rng.random() < 0.3, rng.randrange(2))
                case _:
                    content = [
                        (rng.choice(KEYS), rng.choice([None, rng.randrange(60)]))
                        for _ in range(rng.randint(1, 4))
                    ]
                    self.now_ms += rng.randrange(100)
                    producer_id = rng.choice([PLAIN, *IDEMPOTENT, *TRANSACTIONAL, *TRANSACTIONAL])
                    codec = rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4])
                    self.write_once(content, producer_id, codec)

    def roll(self) -> None:
        self.log.roll(TimestampMs(self.now_ms))

    def change_leader(self) -> None:
        self.epoch += 1

    # Compacting

    def compact(self) -> None:
        cleaner = Cleaner(self.files, InlineWorker())
        limit = self.log.last_stable_offset(self.log.end_offset)
        cleaner.begin([(self.log, limit)], TimestampMs(self.now_ms), self.memory_bytes)
        assert cleaner.failure_count == 0
        assert self.log.offline_reason is None

    def compact_whole(self, *, rolls: bool) -> None:
        if rolls:
            self.log.roll(TimestampMs(self.now_ms))
        self.compact()

    def stop_while_compacting(self, changes: int, rng: Random | None) -> None:
        self.log.roll(TimestampMs(self.now_ms))
        self.log.flushing.save()
        self.log.flush()
        recovery_point = self.log.durable_offset
        before = self.known_producers()
        self.files.stop_after = changes
        with suppress(MachineStopped):
            self.compact()
        self.files = self.files.kill() if rng is None else self.files.cut_power(rng)
        self.open(recovery_point)
        assert self.known_producers() == before
        assert not [
            entry.name
            for entry in self.files.list(self.log.directory)
            if entry.name.endswith((".cleaned", ".swap"))
        ]

    def close_and_open(self) -> None:
        self.log.close()
        self.files = self.files.kill()
        self.open(EVERYTHING)

    def forget_everything_derived(self) -> None:
        """The log alone has to tell all of it."""
        before = self.known_producers()
        epochs = self.log.epochs.entries()
        self.files = self.files.kill()
        for entry in self.files.list(self.log.directory):
            if not entry.name.endswith((".log", "cleaner-offset-checkpoint")):
                self.files.unlink(self.log.directory / entry.name)
        self.open(0)
        assert self.known_producers() == before
        assert self.log.epochs.entries() == epochs

    # What must stay true

    def known_producers(self) -> dict[int, tuple[object, ...]]:
        return {
            producer_id: (
                producer.epoch,
                [batch._replace(appended_ms=NO_TIMESTAMP) for batch in producer.batches],
                producer.transaction_start,
            )
            for producer_id, producer in self.log.producers.items()
        }

    def check(self) -> None:
        self.nothing_changed_its_place()
        self.committed_readers_see_the_last_value_of_every_key()
        self.the_stable_offset_is_that_of_the_first_open_transaction()
        self.epochs_begin_where_they_began()
        self.every_offset_can_be_fetched()
        self.segments_touch()

    def nothing_changed_its_place(self) -> None:
        assert self.log.end_offset == self.end
        assert not self.log.corrupt
        before = -1
        for record in read_all(self.log):
            assert record.offset > before
            before = record.offset
            assert record == self.model[record.offset].record

    def committed_readers_see_the_last_value_of_every_key(self) -> None:
        limit = self.log.last_stable_offset(self.log.end_offset)
        expected: dict[bytes | None, bytes | None] = {}
        for offset, written in self.model.items():
            if offset < limit and not written.is_aborted:
                expected[written.record.key] = written.record.value
        seen: dict[bytes | None, bytes | None] = {}
        for record in read_committed(self.log, limit):
            assert not self.model[record.offset].is_aborted, record
            seen[record.key] = record.value
        assert without_tombstones(seen) == without_tombstones(expected)

    def the_stable_offset_is_that_of_the_first_open_transaction(self) -> None:
        undecided = [at for at, written in self.model.items() if not written.is_decided]
        assert self.log.last_stable_offset(self.log.end_offset) == min(undecided, default=self.end)

    def epochs_begin_where_they_began(self) -> None:
        starts = sorted(self.epoch_starts.items())
        for number, (epoch, _) in enumerate(starts):
            end = starts[number + 1][1] if number + 1 < len(starts) else self.end
            assert self.log.epoch_end(LeaderEpoch(epoch)) == (epoch, end)

    def every_offset_can_be_fetched(self) -> None:
        for offset in range(self.end):
            found = self.log.read(Offset(offset), self.log.end_offset, 1, at_least_one=True)
            assert found is not None
            (header, _), *_ = batches(self.log.read_bytes(found))
            assert header.last_offset >= offset
            assert found.end_offset > offset

    def segments_touch(self) -> None:
        segments = segments_of(self.log)
        for before, after in pairwise(segments):
            assert before.end_offset == after.base_offset
        assert self.log.size_bytes == sum(segment.size_bytes for segment in segments)


def without_tombstones(state: dict[bytes | None, bytes | None]) -> dict[bytes | None, bytes]:
    return {key: value for key, value in state.items() if value is not None}


def read_batches(log: Log, end: Offset) -> list[tuple[BatchHeader, memoryview]]:
    found: list[tuple[BatchHeader, memoryview]] = []
    offset = log.start_offset
    while (part := log.read(offset, end, 700, at_least_one=True)) is not None:
        found += list(batches(log.read_bytes(part)))
        offset = part.end_offset
    return found


def read_all(log: Log) -> list[Record]:
    return [
        record
        for header, view in read_batches(log, log.end_offset)
        if not header.is_control
        for record in records(view)
    ]


def read_committed(log: Log, end: Offset) -> list[Record]:
    """What a consumer makes of an answer: the way every Kafka client skips aborted records."""
    coming = sorted(log.aborted_transactions(log.start_offset, end), key=lambda one: one[1])
    aborted: set[int] = set()
    found: list[Record] = []
    for header, view in read_batches(log, end):
        while coming and coming[0].first_offset <= header.last_offset:
            aborted.add(coming.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(view)
            if marker is not None and marker.kind is MarkerKind.ABORT:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += records(view)
    return found


class Step(Enum):
    """What happens to a log besides being written."""

    COMPACT = "compact"
    COMPACT_AFTER_A_WHILE = "compact after a while"
    KILL = "kill the process while it compacts"
    CUT_POWER = "cut the power while it compacts"
    REOPEN = "close and open"
    FORGET = "forget everything that is derived"


SEEDS = st.integers(0, 2**32)
STEPS = st.lists(st.tuples(SEEDS, st.sampled_from(Step)), min_size=2, max_size=8)


@settings(max_examples=examples(30))
@given(
    steps=STEPS, memory_keys=st.sampled_from([1, 3, 1000]), segment_bytes=st.integers(1024, 3000)
)
def test_readers_miss_nothing_that_counts(
    steps: list[tuple[int, Step]], memory_keys: int, segment_bytes: int
) -> None:
    history = History(memory_keys, segment_bytes)
    for seed, step in steps:
        rng = Random(seed)
        history.live_on(rng, rng.randint(5, 40))
        match step:
            case Step.COMPACT:
                history.compact_whole(rolls=rng.random() < 0.5)
            case Step.COMPACT_AFTER_A_WHILE:
                history.now_ms += 3 * DELETE_RETENTION_MS
                history.compact_whole(rolls=True)
            case Step.KILL:
                history.stop_while_compacting(rng.randrange(60), None)
            case Step.CUT_POWER:
                history.stop_while_compacting(rng.randrange(60), rng)
            case Step.REOPEN:
                history.close_and_open()
            case Step.FORGET:
                history.forget_everything_derived()
        history.check()
