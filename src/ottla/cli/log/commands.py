"""`ottla log`: dump and verify segment files without a broker."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.log import strays
from ottla.cli.log.check import damaged_ranges, find_partitions
from ottla.cli.log.segment_scan import Problem, ScannedBatch, SegmentCheck, find_segments, scan
from ottla.cli.options import Json
from ottla.cli.record_output import json_fields
from ottla.client.positions import format_time
from ottla.clock import SystemClock
from ottla.errors import ApiError, UsageRefused
from ottla.model import Offset, TimestampMs
from ottla.records.batch import check_stored, records
from ottla.storage.damages import CorruptRange

app = typer.Typer(rich_markup_mode=None, help="Inspect a data directory without a broker.")
app.add_typer(strays.app, name="strays")
app.command()(strays.accept_store)

_DECOMPRESSED_BYTES_MAX = 256 << 20


@app.command()
def dump(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Segment files or directories.")
    ],
    with_records: Annotated[
        bool, typer.Option("--records", help="Also print the records of every batch.")
    ] = False,
    json: Json = False,
) -> int:
    """Print the batches of segment files. Read-only; a broker may be running.

    \b
    Examples:
      ottla log dump data/orders-0
      ottla log dump data/orders-0/00000000000000000000.log --records
      ottla log dump data --json | jq 'select(.codec == "gzip")'
    """
    status = OK
    for file in _segments(paths):
        if not json:
            terminal.write_lines([str(file)])
        for found in scan(file):
            if isinstance(found, Problem):
                terminal.print_error(str(found))
                status = FAILED
            elif not _write_batch(file, found, with_records=with_records, json=json):
                status = FAILED
    return status


@app.command()
def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories to check.")],
    json: Json = False,
) -> int:
    """Check segment files: batches, checksums, offsets, indexes, and that none is cut or missing.

    Exit code 1 if something is wrong. Read-only. While a broker writes, the end of an active
    segment may look incomplete.

    \b
    Examples:
      ottla log verify data
      ottla log verify data/orders-0 --json
    """
    files = _segments(paths, or_remains=True)
    total_bytes = sum(file.stat().st_size for file in files)
    progress = terminal.Progress(SystemClock())
    checks = list[SegmentCheck]()
    done_bytes = 0
    for _, segments in groupby(files, key=lambda file: file.parent):
        end_offset = Offset(0)
        for file in segments:
            check = SegmentCheck(file, end_offset)
            for size_bytes in check.run():
                done_bytes += size_bytes
                progress.show(f"{done_bytes * 100 // max(total_bytes, 1)} % checked")
            end_offset = check.end_offset
            checks.append(check)
    progress.clear()
    return _report(checks, _damaged(paths, checks), json=json)


def _damaged(paths: list[Path], checks: list[SegmentCheck]) -> dict[Path, list[CorruptRange]]:
    """The damaged or missing ranges of each partition that was given as a directory."""
    sound = {check.file: check.end_offset for check in checks if not check.problems}
    directories = {found for path in paths if path.is_dir() for found in find_partitions(path)}
    return {directory: damaged_ranges(directory, sound) for directory in sorted(directories)}


def _segments(paths: list[Path], *, or_remains: bool = False) -> list[Path]:
    """The segment files to check; there may be none if other files of a log are left."""
    for path in paths:
        if not path.exists():
            raise UsageRefused(f"no such file or directory: {path}")
    files = [file for path in paths for file in find_segments(path)]
    has_remains = or_remains and any(map(find_partitions, paths))
    if not files and not has_remains:
        raise UsageRefused(f"no segment files in {', '.join(map(str, paths))}")
    return files


def _write_batch(file: Path, batch: ScannedBatch, *, with_records: bool, json: bool) -> bool:
    """Print one batch; False if it is damaged."""
    problem = _problem_of(batch)
    fields = _batch_fields(batch, problem)
    listed = list[dict[str, Any]]()
    if with_records and problem is None:
        listed, problem = _record_fields(batch)
    if json:
        fields = {"file": str(file), **fields, **({"records": listed} if with_records else {})}
        terminal.write_json(fields)
    else:
        terminal.write_lines(list(_batch_lines(fields, listed)))
    if problem is not None:
        terminal.print_error(f"{file} at byte {batch.position}: {problem}")
    return problem is None


def _problem_of(batch: ScannedBatch) -> str | None:
    try:
        check_stored(batch.content)
    except ApiError as problem:
        return str(problem)
    return None


def _batch_fields(batch: ScannedBatch, problem: str | None) -> dict[str, Any]:
    header = batch.header
    return {
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "codec": header.codec.name.lower() if problem is None else None,
        "base_timestamp": header.base_timestamp_ms,
        "max_timestamp": header.max_timestamp_ms,
        "log_append_time": header.is_log_append_time,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon_ms,
        "crc": header.crc,
        "sound": problem is None,
    }


def _record_fields(batch: ScannedBatch) -> tuple[list[dict[str, Any]], str | None]:
    """The decodable records of a batch, and the error that ended them."""
    listed = list[dict[str, Any]]()
    try:
        listed.extend(
            json_fields(record)
            for record in records(batch.content, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)
        )
    except ApiError as problem:
        return listed, str(problem)
    return listed, None


def _batch_lines(fields: dict[str, Any], listed: list[dict[str, Any]]) -> Iterator[str]:
    flags = [name for name in ("transactional", "control", "log_append_time") if fields[name]]
    words = [
        f"  byte {fields['position']}",
        f"offsets {fields['base_offset']}-{fields['last_offset']}",
        terminal.counted(fields["record_count"], "record"),
        terminal.counted(fields["size_bytes"], "byte"),
        f"epoch {fields['leader_epoch']}",
        f"codec {fields['codec'] or '?'}",
        format_time(TimestampMs(fields["max_timestamp"])),
    ]
    if fields["producer_id"] >= 0:
        words.append(f"producer {fields['producer_id']}/{fields['producer_epoch']}")
        words.append(f"sequence {fields['base_sequence']}")
    if fields["delete_horizon"] is not None:
        words.append(f"tombstones until {format_time(TimestampMs(fields['delete_horizon']))}")
    yield "  ".join([*words, *flags, *([] if fields["sound"] else ["DAMAGED"])])
    for one in listed:
        time = format_time(TimestampMs(one["timestamp"]))
        rest = {name: one[name] for name in one if name not in {"offset", "timestamp"}}
        shown = "  ".join(f"{name} {value!r}" for name, value in rest.items())
        if rest.get("value", "") is None:
            shown += "  tombstone"
        yield f"    offset {one['offset']}  {time}  {shown}"


def _report(
    checks: list[SegmentCheck], damaged: dict[Path, list[CorruptRange]], *, json: bool
) -> int:
    problems = [str(problem) for check in checks for problem in check.problems]
    ranges = [
        f"{directory}: offsets {one.start_offset} to {one.end_offset - 1} are damaged or missing"
        for directory, found in damaged.items()
        for one in found
    ]
    if json:
        for check in checks:
            terminal.write_json(_check_fields(check))
        for directory, found in damaged.items():
            terminal.write_json(
                {"directory": str(directory), "damaged": [one[:2] for one in found]}
            )
    for text in [*problems, *ranges]:
        terminal.print_error(text)
    if not json:
        batches = sum(check.batch_count for check in checks)
        record_count = sum(check.record_count for check in checks)
        counted = terminal.counted
        verdict = "all sound"
        if problems or ranges:
            verdict = (
                f"{counted(len(problems), 'problem')}, {counted(len(ranges), 'damaged range')}"
            )
        segments, records = counted(len(checks), "segment"), counted(record_count, "record")
        text = f"{segments}, {counted(batches, 'batch', 'batches')}, {records}: {verdict}"
        terminal.write_lines([text])
    return FAILED if problems or ranges else OK


def _check_fields(check: SegmentCheck) -> dict[str, Any]:
    return {
        "file": str(check.file),
        "batches": check.batch_count,
        "records": check.record_count,
        "size_bytes": check.size_bytes,
        "end_offset": check.end_offset,
        "problems": [str(problem) for problem in check.problems],
    }
