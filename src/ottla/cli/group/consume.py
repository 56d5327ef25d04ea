"""`ottla consume --group`: records become lines, and the group remembers which."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.cli import terminal
from ottla.cli.byte_sink import ByteSink
from ottla.cli.group.description import format_partitions
from ottla.cli.record_output import Print
from ottla.client.client import Client
from ottla.client.group_member import GroupMember
from ottla.client.group_reader import (
    Assigned,
    GroupEvent,
    GroupReader,
    Lost,
    Moved,
    Reading,
    Revoked,
)
from ottla.client.partitions import Isolation

_GRACE_S: Final = 2.0  # so long a line that is being written may take to be read, once told to stop
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """What was asked for on the command line."""

    group: str
    topics: Sequence[str]
    start: int  # for a partition without committed offset: EARLIEST, LATEST or a timestamp
    follow: bool
    count_max: int | None
    commit_every_s: float
    isolation: Isolation


async def print_as_member(client: Client, asked: GroupReading, printer: Print) -> None:
    """Read and print until the end, enough records, or a signal; then commit and leave."""
    await client.describe(asked.topics)
    reader = GroupReader(
        GroupMember(client, asked.group, asked.topics),
        start=asked.start,
        isolation=asked.isolation,
        note=lambda event: terminal.note(describe_event(asked.group, event)),
    )
    sys.stdout.flush()
    work = _Printing(reader, asked, printer, ByteSink(sys.stdout.fileno()))
    try:
        await _run_until_told(work)
    finally:
        await reader.close()
    terminal.note(f"{work.printed_count} records read, group {asked.group} left")


def describe_event(group: str, event: GroupEvent) -> str:
    """One line for people."""
    match event:
        case Assigned(partitions, generation):
            what = format_partitions(partitions) or "nothing, others have it all"
            return f"group {group}, generation {generation}: reading {what}"
        case Revoked(partitions):
            return f"group {group}: gave back {format_partitions(partitions)}"
        case Lost(partitions, reason):
            return (
                f"group {group}: lost {format_partitions(partitions)} ({reason}); records since the"
                " last commit will be read again"
            )
        case Moved(tp, wanted, found):
            return f"group {group}: {tp} has no offset {wanted}, reading from {found}"


class _Printing:
    """The loop: read, write, then say that it is done; commit now and then."""

    def __init__(
        self, reader: GroupReader, asked: GroupReading, printer: Print, sink: ByteSink
    ) -> None:
        self._reader = reader
        self._asked = asked
        self._print = printer
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._commit_s = self._loop.time() + asked.commit_every_s
        self.told_to_stop = asyncio.Event()
        self.printed_count = 0

    async def run(self) -> None:
        while not self._is_over():
            for reading in await self._reader.next_readings():
                await self._write(reading)
                await self._commit_when_due()
                if self._is_over():
                    return
            await self._commit_when_due()
            if not self._asked.follow and self._reader.is_at_end:
                return

    async def _write(self, reading: Reading) -> None:
        records, end = reading.records, reading.end
        if self._asked.count_max is not None:
            left = self._asked.count_max - self.printed_count
            if left < len(records):
                records, end = records[:left], records[left].offset
        await self._sink.write(b"".join([self._print(reading.tp, record) for record in records]))
        self._reader.note_done(reading.tp, end)
        self.printed_count += len(records)

    async def _commit_when_due(self) -> None:
        if self._loop.time() >= self._commit_s:
            await self._reader.commit()
            self._commit_s = self._loop.time() + self._asked.commit_every_s

    def _is_over(self) -> bool:
        return self.told_to_stop.is_set() or self.printed_count == self._asked.count_max


async def _run_until_told(work: _Printing) -> None:
    """SIGINT and SIGTERM end it: what is being written is finished, if somebody reads it."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        work.told_to_stop.set()
        for signum in _SIGNALS:  # a second one ends the process at once
            loop.remove_signal_handler(signum)

    for signum in _SIGNALS:
        loop.add_signal_handler(signum, stop)
    running = asyncio.create_task(work.run())
    told = asyncio.create_task(work.told_to_stop.wait())
    try:
        await asyncio.wait([running, told], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait([running], timeout=_GRACE_S)
        if running.done():
            running.result()
    finally:
        running.cancel()
        told.cancel()
        await asyncio.wait([running, told])
