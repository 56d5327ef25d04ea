"""`ottla consume --share`: prints records as a member of a share group and accepts them."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ottla.cli import terminal
from ottla.cli.async_io import AsyncOutput
from ottla.cli.exit_codes import OK
from ottla.cli.record_columns import DecodedRecords
from ottla.cli.record_output import Print
from ottla.cli.run_client import run_with_client
from ottla.cli.until_signal import run_until_signal
from ottla.client.client import Client
from ottla.client.share_consumer import ShareConsumer, ShareRecord

_POLL_RECORDS: Final = 500
_POLL_MS: Final = 1000  # without --follow, a poll without records is the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReading:
    """The options of the command line."""

    group: str
    topics: Sequence[str]
    follow: bool
    count_max: int | None


def consume_as_sharer(broker: str, options: ShareReading, printer: Print) -> int:
    """Run `ottla consume --share`; returns the exit code."""
    run_with_client(broker, lambda client: _print_as_sharer(client, options, printer))
    return OK


async def _print_as_sharer(client: Client, options: ShareReading, printer: Print) -> None:
    """Read, print and accept until the end, enough records, or a signal; then leave."""
    await client.describe(options.topics)
    sys.stdout.flush()
    output = AsyncOutput(sys.stdout.fileno())
    consumer = ShareConsumer(client, options.group, options.topics)
    work = _Printing(consumer, options, printer, output)
    try:
        await output.run_while_open(run_until_signal(work))
    finally:
        await consumer.close()
    terminal.print_note(
        f"{terminal.counted(work.accepted_count, 'record')} accepted, share group"
        f" {options.group} left"
    )


class _Printing:
    """The loop: acquire, write, accept what was written."""

    def __init__(
        self, consumer: ShareConsumer, options: ShareReading, printer: Print, output: AsyncOutput
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._print = printer
        self._output = output
        self.stop_requested = asyncio.Event()
        self.printed_count = 0
        self.accepted_count = 0

    async def run(self) -> None:
        while (wanted := self._wanted()) and not self.stop_requested.is_set():
            records = await self._consumer.poll(wanted, _POLL_MS)
            if not records and not self._options.follow:
                return
            for tp, part in groupby(records, lambda record: record.tp):
                of_partition = list(part)
                text = self._print(tp, DecodedRecords([one.record for one in of_partition]))
                await self._output.write(text)
                await self._accept(of_partition)
                if self.stop_requested.is_set():
                    return

    def _wanted(self) -> int:
        if self._options.count_max is None:
            return _POLL_RECORDS
        return min(_POLL_RECORDS, self._options.count_max - self.printed_count)

    async def _accept(self, records: Sequence[ShareRecord]) -> None:
        self.printed_count += len(records)
        for record in records:
            self._consumer.acknowledge(record)
        failed = await self._consumer.commit()
        self.accepted_count += len(records) - len(failed)
        if failed:
            terminal.print_note(
                f"{terminal.counted(len(failed), 'record')} may be delivered again:"
                f" {failed[0].failure}"
            )
