"""A led partition on which records may wait, in memory, under a clock that a test sets."""

from collections.abc import Sequence

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.lens_reads import read_seen
from ottla.broker.waiting_partition import WaitingPartition
from ottla.config import TopicConfig
from ottla.model import (
    NO_PRODUCER,
    NO_SEQUENCE,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.model import Sequence as SequenceNumber
from ottla.records.batch import (
    NO_PRODUCER_EPOCH,
    Marker,
    MarkerKind,
    Record,
    batches,
    build_batch,
    records,
)
from ottla.records.compression import Codec
from ottla.replication.partition import ACKS_ALL, Receipt
from ottla.storage.log import Log

SETTINGS = {"delay.enable": "true", "durability": "replicated"}


class NoFlusher:
    """A flusher that is never asked: the topic does not promise the disk."""

    def request(self, log: Log) -> None:
        raise AssertionError("nothing is flushed")


class WaitingLog:
    """A partition that is led; `restart` reads what waits from its log, as a new leader does."""

    def __init__(
        self, settings: dict[str, str] | None = None, files: MemoryFiles | None = None
    ) -> None:
        self.config = TopicConfig().override({**SETTINGS, **(settings or {})})
        self.files = files or MemoryFiles()
        self.now_ms = int(build.NOW_MS)
        self.looks = 0
        self.epoch = 0
        self.log = build.log(self.files, self.config)
        self.lead()

    def lead(self, *, loads: bool = True) -> None:
        """Lead in a new epoch, and read the log unless told otherwise."""
        self.epoch += 1
        self.partition = led_partition(
            build.TP,
            self.log,
            broker_id=BrokerId(0),
            leader_epoch=LeaderEpoch(self.epoch),
            replicas=(BrokerId(0),),
            isr=[BrokerId(0)],
            flusher=NoFlusher(),
            soon=lambda callback: None,
        )
        self.waiting = WaitingPartition(
            self.partition, lambda: TimestampMs(self.now_ms), self._note_look
        )
        self.partition.waiting = self.waiting
        if loads:
            self.load()

    def _note_look(self, _: WaitingPartition) -> None:
        self.looks += 1

    def load(self) -> None:
        while self.waiting.load():
            pass

    def restart(self) -> None:
        """The broker dies and starts again: all that it kept in memory is gone."""
        self.log = build.log(self.files, self.config, start_offset=self.log.start_offset)
        self.lead()

    def send(
        self,
        sent: Sequence[Record],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER,
        sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> Receipt:
        batch = build_batch(
            sent,
            codec=codec,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0) if producer_id >= 0 else NO_PRODUCER_EPOCH,
            base_sequence=SequenceNumber(sequence),
            is_transactional=is_transactional,
        )
        return self.partition.append(memoryview(batch), ACKS_ALL, TimestampMs(self.now_ms))

    def end(self, producer_id: int, kind: MarkerKind) -> None:
        self.partition.append_marker(
            Marker(kind, 0), ProducerId(producer_id), ProducerEpoch(0), TimestampMs(self.now_ms)
        )

    def release(self, portion: int = 32) -> None:
        """Release all that is due."""
        while self.waiting.release(portion, TimestampMs(self.now_ms)):
            pass

    def rearm(self, below: int, portion: int = 32) -> None:
        """Append again what waits below an offset."""
        self.waiting.clear(Offset(below))
        while self.waiting.wants_rearm:
            self.waiting.rearm(portion, TimestampMs(self.now_ms))

    def seen(self, start: int | None = None) -> list[Record]:
        """The records that a consumer that reads uncommitted sees from an offset on."""
        at = self.log.start_offset if start is None else Offset(start)
        found: list[Record] = []
        while at < self.log.end_offset:
            seen = read_seen(self.log, at, self.log.end_offset, 2000, at_least_one=True)
            assert seen is not None, "there is more to read"
            position = at
            for header, batch in batches(self.log.read_bytes(seen.records)):
                assert header.base_offset <= position or header.base_offset >= at, "in order"
                position = header.next_offset
                if not header.is_control:
                    found += records(batch)
            assert position == seen.records.end_offset > at, "the reader gets on"
            at = seen.records.end_offset
        return found


def record(value: bytes = b"value", key: bytes | None = None, **headers: str | int) -> Record:
    """A record; keyword arguments are headers: `delay_ms=5` is `ottla.delay-ms: 5`."""
    return Record(
        timestamp_ms=build.NOW_MS,
        key=key,
        value=value,
        headers=tuple(
            (f"ottla.{name.replace('_', '-')}", str(content).encode())
            for name, content in headers.items()
        ),
    )
