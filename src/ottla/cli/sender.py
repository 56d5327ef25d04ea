"""Sends records in order and tracks which input lines are written."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.cli.outgoing import Outgoing, split
from ottla.client.client import Client
from ottla.client.errors import ClientError, ConnectionLost, DeadlineExceeded, Refused
from ottla.client.partitioner import Partitioner
from ottla.client.partitions import Acks, produce, wait_received
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.records.batch import seal
from ottla.records.compression import Codec

_RANGES_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Loss:
    """Input lines that are not known to be written, and the reason."""

    lines: tuple[int, ...]
    reason: ClientError

    def explain(self) -> str:
        """The loss as one line of text."""
        shown = format_ranges(self.lines)
        if isinstance(self.reason, ConnectionLost | DeadlineExceeded):
            return f"it is not known whether line {shown} was written: {self.reason}"
        return f"line {shown} was not written: {self.reason}"


@dataclass(slots=True)
class PartitionCount:
    """The records written to one partition; offsets are None with acks=0."""

    records: int = 0
    first_offset: Offset | None = None
    last_offset: Offset | None = None

    def note(self, base_offset: Offset | None, count: int) -> None:
        """Count a written batch."""
        self.records += count
        if base_offset is not None:
            if self.first_offset is None:
                self.first_offset = base_offset
            self.last_offset = Offset(base_offset + count - 1)


@dataclass(slots=True, kw_only=True)
class Sender:
    """Writes to one topic and counts what is written. After a loss it sends nothing more."""

    client: Client
    topic: str
    partitioner: Partitioner
    acks: Acks = Acks.ALL
    codec: Codec = Codec.NONE
    counts: dict[int, PartitionCount] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)

    @property
    def written_count(self) -> int:
        return sum(count.records for count in self.counts.values())

    async def send(self, by_partition: Mapping[int, Outgoing]) -> None:
        """Write the records of each partition in order."""
        self.partitioner.next_batch()
        await asyncio.gather(
            *(self._send_in_order(index, outgoing) for index, outgoing in by_partition.items())
        )
        if self.acks is Acks.NONE:
            tps = [TopicPartition(self.topic, index) for index in by_partition]
            await wait_received(self.client, tps)

    async def _send_in_order(self, partition: int, outgoing: Outgoing) -> None:
        """Write one partition's records batch by batch, until the first loss."""
        waiting = list(reversed(split(outgoing)))
        while waiting:
            batch = waiting.pop()
            try:
                await self._send_batch(partition, batch)
            except Refused as problem:
                if problem.code is ErrorCode.MESSAGE_TOO_LARGE and len(batch) > 1:
                    half = len(batch) // 2
                    waiting += [batch.part(half, len(batch)), batch.part(0, half)]
                    continue
                self._lose(batch, waiting, problem)
                return
            except ClientError as problem:
                self._lose(batch, waiting, problem)
                return

    async def _send_batch(self, partition: int, outgoing: Outgoing) -> None:
        batch = seal(outgoing.pack(), codec=self.codec)
        tp = TopicPartition(self.topic, partition)
        base_offset = await produce(self.client, tp, batch, self.acks)
        self.counts.setdefault(partition, PartitionCount()).note(base_offset, len(outgoing))

    def _lose(
        self,
        batch: Outgoing,
        waiting: Sequence[Outgoing],
        problem: ClientError,
    ) -> None:
        self.losses.append(Loss(tuple(batch.lines()), problem))
        never_sent = tuple(line for unsent in reversed(waiting) for line in unsent.lines())
        if never_sent:
            self.losses.append(Loss(never_sent, ClientError("an earlier line failed")))


def format_ranges(lines: Sequence[int]) -> str:
    """Ascending line numbers as ranges: 3, 5-9."""
    ranges = list[list[int]]()
    for line in lines:
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(shown) > _RANGES_SHOWN_MAX:
        shown = [*shown[:_RANGES_SHOWN_MAX], f"and {len(shown) - _RANGES_SHOWN_MAX} more"]
    return ", ".join(shown)
