"""`ottla produce`: writes lines as records."""

import asyncio
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Final

import typer

from ottla.cli import terminal
from ottla.cli.async_io import AsyncLines
from ottla.cli.exit_codes import FAILED, OK, WRONG_USAGE
from ottla.cli.line_columns import LineColumns, can_read
from ottla.cli.options import Broker, Json
from ottla.cli.outgoing import NumberedRecord, Outgoing, by_partition
from ottla.cli.partition_choice import check_partition
from ottla.cli.record_input import InputFormat, LineReader, OutgoingRecord, parse_header
from ottla.cli.run_client import run_with_client
from ottla.cli.sender import Sender
from ottla.client.client import Client
from ottla.client.partitioner import Partitioner
from ottla.client.partitions import Acks
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs, topic_name_problem
from ottla.records.batch import Record
from ottla.records.compression import Codec

app = typer.Typer(rich_markup_mode=None)


class AcksName(StrEnum):
    """The values of --acks."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class CodecName(StrEnum):
    """The values of --compression."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


_ACKS: Final = {AcksName.NONE: Acks.NONE, AcksName.LEADER: Acks.LEADER, AcksName.ALL: Acks.ALL}


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")]
InputFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File to read lines from.", show_default="standard input"),
]
Format = Annotated[InputFormat, typer.Option("--format", help="Format of a line.")]
KeySeparator = Annotated[
    str, typer.Option(metavar="TEXT", help="Text between key and value in a line.")
]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Key of every record.")]
Headers = Annotated[
    list[str],
    typer.Option("--header", metavar="NAME=VALUE", help="Header of every record; repeatable."),
]
Partition = Annotated[
    int | None,
    typer.Option(min=0, metavar="P", help="Partition of every record; default: by key."),
]
AcksOption = Annotated[
    AcksName,
    typer.Option(help="Replicas that must have a record: none, the leader, all in sync."),
]
Compression = Annotated[CodecName, typer.Option(help="Compression of batches.")]


@app.command()
def produce(
    topic: Topic,
    file: InputFile = None,
    input_format: Format = InputFormat.LINES,
    key_separator: KeySeparator = "",
    key: Key = None,
    header: Headers = [],  # noqa: B006  typer copies it
    partition: Partition = None,
    acks: AcksOption = AcksName.ALL,
    compression: Compression = CodecName.NONE,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Write each line of the input as a record, and print how many were written.

    With --format json a line is an object with "value" and optional "key", "headers",
    "timestamp" (ms), "partition"; "value_base64" and "key_base64" are for arbitrary bytes. This is
    also the output of `ottla consume --json`. After a failure the lines that were not written are
    listed, and no later line is sent.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --file orders.txt --key-separator :
      ottla consume orders --json | ottla produce copy --format json
      ottla produce orders --header source=shop --compression zstd < lines.txt
    """
    if problem := topic_name_problem(topic):
        raise UsageRefused(f"{topic!r}: {problem}")
    if key_separator and (key is not None or input_format is InputFormat.JSON):
        raise UsageRefused("--key-separator excludes --key and --format json: leave one out")
    reader = LineReader(
        format=input_format,
        key_separator=_unescape(key_separator) or None,
        key=None if key is None else key.encode(),
        headers=tuple(map(parse_header, header)),
        partition=partition,
    )

    async def work(client: Client) -> int:
        view = await client.describe_or_create(topic)
        if partition is not None:
            check_partition(topic, partition, len(view.topics[topic].partitions))
        sender = Sender(
            client=client,
            topic=topic,
            partitioner=Partitioner(len(view.topics[topic].partitions), SystemRandom()),
            acks=_ACKS[acks],
            codec=Codec[compression.name],
        )
        bad_line = await Pump(source, reader, sender).run()
        return _report(sender, bad_line, json=json)

    with _descriptor(file) as descriptor:
        source = AsyncLines(descriptor)
        return run_with_client(broker, work)


class Pump:
    """Moves lines from the input to a sender: while some are sent, the next are read."""

    def __init__(self, source: AsyncLines, reader: LineReader, sender: Sender) -> None:
        self._source = source
        self._reader = reader
        self._sender = sender
        self._clock = SystemClock()
        self._line = 0

    async def run(self) -> str | None:
        """Run until the input ends or something fails; returns the error of a bad line, if any."""
        progress = terminal.Progress(self._clock)
        try:
            lines = await self._source.next_lines()
            while lines:
                outgoing, bad_line = self._read(lines)
                following = asyncio.create_task(self._source.next_lines())
                try:
                    await self._sender.send(outgoing)
                    if bad_line or self._sender.losses:
                        return bad_line
                    progress.show(
                        f"{terminal.counted(self._sender.written_count, 'record')} written"
                    )
                    lines = await following
                finally:
                    following.cancel()
            return None
        finally:
            progress.clear()

    def _read(self, lines: Sequence[bytes]) -> tuple[Mapping[int, Outgoing], str | None]:
        """The records of the lines before the first bad one, and the error of that one."""
        partitioner = self._sender.partitioner
        if can_read(self._reader):
            columns = LineColumns(lines, self._reader, self._line + 1, self._clock.now_ms())
            self._line += len(lines)
            return columns.by_partition(partitioner), columns.bad_line
        records, bad_line = self._read_one_by_one(lines)
        return by_partition(records, partitioner), bad_line

    def _read_one_by_one(
        self, lines: Sequence[bytes]
    ) -> tuple[list[tuple[NumberedRecord, int | None]], str | None]:
        records = list[tuple[NumberedRecord, int | None]]()
        now_ms = self._clock.now_ms()
        for line in lines:
            self._line += 1
            try:
                outgoing = self._reader.read(line)
                self._check_partition(outgoing.partition)
            except UsageRefused as problem:
                return records, f"line {self._line}: {problem}"
            records.append(
                (NumberedRecord(self._line, _record(outgoing, now_ms)), outgoing.partition)
            )
        return records, None

    def _check_partition(self, partition: int | None) -> None:
        count = self._sender.partitioner.partition_count
        if partition is not None:
            check_partition(self._sender.topic, partition, count)


def _record(outgoing: OutgoingRecord, now_ms: TimestampMs) -> Record:
    timestamp_ms = now_ms if outgoing.timestamp_ms is None else TimestampMs(outgoing.timestamp_ms)
    return Record(
        timestamp_ms=timestamp_ms,
        key=outgoing.key,
        value=outgoing.value,
        headers=outgoing.headers,
    )


def _report(sender: Sender, bad_line: str | None, *, json: bool) -> int:
    """Print what was written and what was not."""
    for loss in sender.losses:
        terminal.print_error(loss.explain())
    if bad_line:
        terminal.print_error(f"{bad_line}; this and later lines were not sent")
    if json:
        partitions = {str(index): asdict(sender.counts[index]) for index in sorted(sender.counts)}
        terminal.write_json(
            {"topic": sender.topic, "written": sender.written_count, "partitions": partitions}
        )
    else:
        sent = "sent" if sender.acks is Acks.NONE else "written"
        terminal.print_note(
            f"{terminal.counted(sender.written_count, 'record')} {sent} to {sender.topic}"
        )
    if sender.losses:
        return FAILED
    return WRONG_USAGE if bad_line else OK


@contextmanager
def _descriptor(file: Path | None) -> Iterator[int]:
    """The input: a file that is closed afterwards, or standard input."""
    if file is None:
        if sys.stdin.isatty():
            terminal.print_note("one record per line; Ctrl-D ends")
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as problem:
        raise UsageRefused(f"--file {file} cannot be read: {problem.strerror}") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise UsageRefused(f"--file {file} cannot be read: it is a directory")
        yield descriptor
    finally:
        os.close(descriptor)


def _unescape(text: str) -> bytes:
    return text.replace("\\t", "\t").encode()
