"""`ottla dlq`: list, show, redrive and purge the dead letters of share groups."""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.options import Broker, Json
from ottla.cli.record_output import json_fields
from ottla.cli.run_client import run_with_client
from ottla.cli.topic_trim import TrimmedPartition, trim_topic
from ottla.client.client import Client
from ottla.client.dead_letters import (
    DeadLetter,
    DeadLetterChoice,
    Redriven,
    dead_letter_topics,
    partitions_of,
    read_dead_letters,
)
from ottla.client.dead_letters import (
    redrive as redrive_chosen,
)
from ottla.client.errors import ClientError
from ottla.client.positions import AtTime, Edge, format_time, parse_log_position
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs

app = typer.Typer(
    rich_markup_mode=None, help="List, show, redrive and purge dead letters of share groups."
)
CAUSES: Final = ("delivery-limit", "rejected")
_SHOWN_BYTES: Final = 60  # of a key or value in a table

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Dead-letter topic.")]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="Only records with this key.")]
CauseOption = Annotated[
    str | None, typer.Option("--cause", metavar="CAUSE", help=f"Only {' or '.join(CAUSES)}.")
]
Group = Annotated[str | None, typer.Option(metavar="GROUP", help="Only what died in this group.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only what died then or later: a time, or -2h.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only what died before.")]
CountMax = Annotated[
    int | None, typer.Option("--max", min=1, metavar="N", help="At most so many records.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(slots=True)
class _Summary:
    """Counts of a dead-letter topic."""

    topic: str
    waiting: int = 0
    redriven: int = 0
    oldest_ms: TimestampMs | None = None

    def note(self, item: DeadLetter) -> None:
        if item.is_redriven:
            self.redriven += 1
            return
        self.waiting += 1
        died_ms = item.record.timestamp_ms
        self.oldest_ms = died_ms if self.oldest_ms is None else min(self.oldest_ms, died_ms)


@app.command("list")
def list_topics(json: Json = False, broker: Broker = "") -> int:
    """List dead-letter topics, with how many records died and how many of them went back.

    \b
    Examples:
      ottla dlq list
      ottla dlq list --json | jq 'select(.waiting > 0)'
    """

    async def work(client: Client) -> list[tuple[_Summary, Counter[tuple[str, str]]]]:
        found = []
        for topic in await dead_letter_topics(client):
            summary, groups = _Summary(topic), Counter[tuple[str, str]]()
            async for item in read_dead_letters(client, await partitions_of(client, topic)):
                summary.note(item)
                if not item.is_redriven:
                    groups[item.group, item.cause] += 1
            found.append((summary, groups))
        return found

    summaries = run_with_client(broker, work)
    if json:
        for summary, groups in summaries:
            terminal.write_json(
                {
                    "topic": summary.topic,
                    "waiting": summary.waiting,
                    "redriven": summary.redriven,
                    "oldest_timestamp": summary.oldest_ms,
                    "groups": [
                        {"group": group, "cause": cause, "waiting": count}
                        for (group, cause), count in sorted(groups.items())
                    ],
                }
            )
        return OK
    terminal.write_table(
        ["TOPIC", "WAITING", "REDRIVEN", "OLDEST", "GROUPS"],
        [
            [
                summary.topic,
                str(summary.waiting),
                str(summary.redriven),
                "" if summary.oldest_ms is None else format_time(summary.oldest_ms),
                ", ".join(sorted({group for group, _ in groups})),
            ]
            for summary, groups in summaries
        ],
    )
    return OK


@app.command()
def show(
    topic: TopicName,
    key: Key = None,
    cause: CauseOption = None,
    group: Group = None,
    since: Since = None,
    until: Until = None,
    count_max: CountMax = None,
    redriven: Annotated[
        bool, typer.Option("--redriven", help="Also those that went back already.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show dead letters: what died where and why, and what it was.

    \b
    Examples:
      ottla dlq show dlq.orders
      ottla dlq show dlq.orders --cause rejected --since -1h --max 10 --json
    """
    choice = _choice(key, cause, group, since, until, count_max)

    async def work(client: Client) -> list[DeadLetter]:
        await _check_topic(client, topic)
        found: list[DeadLetter] = []
        async for item in read_dead_letters(client, await partitions_of(client, topic)):
            if choice.has(item) and (redriven or not item.is_redriven):
                found.append(item)
                if len(found) == count_max:
                    break
        return found

    dead = run_with_client(broker, work)
    if json:
        for item in dead:
            terminal.write_json(_as_json(item))
        return OK
    terminal.write_table(
        ["PARTITION", "OFFSET", "DIED", "GROUP", "CAUSE", "DELIVERIES", "RECORD", "KEY", "VALUE"],
        [
            [
                str(item.tp.partition),
                str(item.offset),
                format_time(item.record.timestamp_ms),
                item.group,
                item.cause + (" (redriven)" if item.is_redriven else ""),
                str(item.deliveries),
                f"{item.source}@{item.source_offset}",
                _shown(item.record.key),
                _shown(item.record.value) if item.has_copy else "(not copied)",
            ]
            for item in dead
        ],
    )
    return OK


@app.command()
def redrive(
    topic: TopicName,
    key: Key = None,
    cause: CauseOption = None,
    group: Group = None,
    since: Since = None,
    until: Until = None,
    count_max: CountMax = None,
    yes: Yes = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Send records back to their topics, for the groups in which they died. Asks on a terminal.

    Each record goes back once, however often and wherever this runs: it and a note in the
    dead-letter topic are one transaction. Exit code 1 if some could not be sent back.

    \b
    Examples:
      ottla dlq redrive dlq.orders --yes
      ottla dlq redrive dlq.orders --cause delivery-limit --since -1h --max 100
    """
    choice = _choice(key, cause, group, since, until, count_max)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Send records of {topic} back?", abort=True, err=True)

    async def work(client: Client) -> Redriven:
        await _check_topic(client, topic)
        return await redrive_chosen(client, topic, choice, SystemClock().now_ms)

    counts = run_with_client(broker, work)
    if json:
        terminal.write_json(
            {
                "topic": topic,
                "redriven": counts.count,
                "without_copy": counts.without_copy,
                "without_topic": counts.without_topic,
                "too_large": counts.too_large,
            }
        )
    else:
        terminal.print_note(f"{terminal.counted(counts.count, 'record')} sent back")
    if counts.without_copy:
        terminal.print_error(
            f"{terminal.counted(counts.without_copy, 'dead letter')} without a copy of the record:"
            " see errors.deadletterqueue.copy.record.enable"
        )
    if counts.without_topic:
        terminal.print_error(
            f"{terminal.counted(counts.without_topic, 'dead letter')} of topics or partitions that"
            " do not exist"
        )
    if counts.too_large:
        terminal.print_error(
            f"{terminal.counted(counts.too_large, 'dead letter')} of records larger than"
            " max.message.bytes of their topic: raise it, and run this again"
        )
    return FAILED if counts.without_copy or counts.without_topic or counts.too_large else OK


@app.command()
def purge(
    topic: TopicName,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only what died before: a time, or -7d; default: all."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Delete dead letters for good. Asks on a terminal.

    \b
    Examples:
      ottla dlq purge dlq.orders --before -7d
      ottla dlq purge dlq.orders --yes
    """
    before_ms = _time("--before", before)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete dead letters of {topic}?", abort=True, err=True)

    async def work(client: Client) -> list[TrimmedPartition]:
        await _check_topic(client, topic)
        position = Edge.END if before_ms is None else AtTime(before_ms)
        return await trim_topic(client, {topic: None}, position)

    trimmed = run_with_client(broker, work)
    if json:
        for item in trimmed:
            terminal.write_json(item.as_json())
        return OK
    terminal.write_table(
        ["PARTITION", "START", "NEW START", "END"],
        [
            [str(item.partition), str(item.before), str(item.start), str(item.end)]
            for item in trimmed
        ],
    )
    return OK


async def _check_topic(client: Client, topic: str) -> None:
    """Refuse a topic that takes no dead letters: it is probably another one that was meant."""
    await partitions_of(client, topic)
    if topic not in await dead_letter_topics(client):
        raise ClientError(
            f"{topic} takes no dead letters: `ottla dlq list` shows those that do, and"
            " errors.deadletterqueue.group.enable=true makes it one"
        )


def _choice(
    key: str | None,
    cause: str | None,
    group: str | None,
    since: str | None,
    until: str | None,
    count_max: int | None,
) -> DeadLetterChoice:
    if cause is not None and cause not in CAUSES:
        raise UsageRefused(f"--cause: {cause!r} is none of {', '.join(CAUSES)}")
    return DeadLetterChoice(
        key=None if key is None else key.encode(),
        cause=cause,
        group=group,
        since_ms=_time("--since", since),
        until_ms=_time("--until", until),
        count_max=count_max,
    )


def _time(option: str, text: str | None) -> TimestampMs | None:
    if text is None:
        return None
    position = parse_log_position(text, SystemClock().now_ms())
    if not isinstance(position, AtTime):
        raise UsageRefused(f"{option}: {text!r} is not a time, such as 2026-11-15T00:00Z or -2h")
    return position.timestamp_ms


def _as_json(item: DeadLetter) -> dict[str, Any]:
    return {
        "topic": item.tp.topic,
        "partition": item.tp.partition,
        "group": item.group,
        "cause": item.cause,
        "message": item.message,
        "deliveries": item.deliveries,
        "source_topic": item.source.topic,
        "source_partition": item.source.partition,
        "source_offset": item.source_offset,
        "history": list(item.history),
        "has_copy": item.has_copy,
        "redriven": item.is_redriven,
        **json_fields(item.record),
    }


def _shown(value: bytes | None) -> str:
    if value is None:
        return ""
    text = value[:_SHOWN_BYTES].decode(errors="replace")
    return terminal.one_line(text) + ("..." if len(value) > _SHOWN_BYTES else "")
