"""`ottla consume --group`: prints records as a member of a group and commits offsets."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.cli import terminal
from ottla.cli.async_io import AsyncOutput
from ottla.cli.exit_codes import OK
from ottla.cli.group.description import format_partitions
from ottla.cli.record_output import Print
from ottla.cli.record_printing import print_batches
from ottla.cli.run_client import run_with_client
from ottla.cli.until_signal import run_until_signal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """The options of the command line."""

    group: str
    topics: Sequence[str]
    start: int  # for a partition without committed offset: EARLIEST, LATEST or a timestamp
    follow: bool
    count_max: int | None
    commit_every_s: float
    isolation: Isolation


def consume_as_member(broker: str, options: GroupReading, printer: Print) -> int:
    """Run `ottla consume --group`; returns the exit code."""
    run_with_client(broker, lambda client: _print_as_member(client, options, printer))
    return OK


async def _print_as_member(client: Client, options: GroupReading, printer: Print) -> None:
    """Read and print until the end, enough records, or a signal; then commit and leave."""
    await client.describe(options.topics)
    reader = GroupReader(
        GroupMember(client, options.group, options.topics),
        start=options.start,
        isolation=options.isolation,
        note=lambda event: terminal.print_note(describe_event(options.group, event)),
    )
    sys.stdout.flush()
    output = AsyncOutput(sys.stdout.fileno())
    work = _Printing(reader, options, printer, output)
    try:
        await output.run_while_open(run_until_signal(work))
    finally:
        await reader.close()
    terminal.print_note(
        f"{terminal.counted(work.printed_count, 'record')} read, group {options.group} left"
    )


def describe_event(group: str, event: GroupEvent) -> str:
    """The event as one line of text."""
    match event:
        case Assigned(partitions, generation):
            what = format_partitions(partitions) or "no partitions, other members have all"
            return f"group {group}, generation {generation}: reading {what}"
        case Revoked(partitions):
            return f"group {group}: revoked {format_partitions(partitions)}"
        case Lost(partitions, reason):
            return (
                f"group {group}: lost {format_partitions(partitions)} ({reason}); records since the"
                " last commit will be read again"
            )
        case Moved(tp, wanted, found):
            return f"group {group}: {tp} has no offset {wanted}, reading from {found}"


class _Printing:
    """The loop: read, write, mark as done, commit when due."""

    def __init__(
        self, reader: GroupReader, options: GroupReading, printer: Print, output: AsyncOutput
    ) -> None:
        self._reader = reader
        self._options = options
        self._print = printer
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._commit_s = self._loop.time() + options.commit_every_s
        self.stop_requested = asyncio.Event()
        self.printed_count = 0

    async def run(self) -> None:
        while not self._is_over():
            for reading in await self._reader.next_readings():
                await self._write(reading)
                if self._is_over():
                    return
            await self._commit_when_due()
            if not self._options.follow and self._reader.is_at_end:
                return

    async def _write(self, reading: Reading) -> None:
        count_max = self._options.count_max
        left = None if count_max is None else count_max - self.printed_count
        for piece in print_batches(reading.batches, self._print, left):
            await self._output.write(piece.text)
            self._reader.note_done(reading.tp, piece.end)
            self.printed_count += piece.record_count
            await self._commit_when_due()
        if not self._is_over():
            self._reader.note_done(reading.tp, reading.end)  # with markers behind the last record

    async def _commit_when_due(self) -> None:
        if self._loop.time() >= self._commit_s:
            await self._reader.commit()
            self._commit_s = self._loop.time() + self._options.commit_every_s

    def _is_over(self) -> bool:
        return self.stop_requested.is_set() or self.printed_count == self._options.count_max
