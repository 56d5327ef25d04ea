"""Tickets of records that wait: as users write them, and as JSON; cancelling for commands."""

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.partition_choice import choose_partitions
from ottla.client.client import Client
from ottla.client.positions import format_duration
from ottla.client.waiting_records import CancelOutcome, Ticket, count_waiting
from ottla.errors import UsageRefused

_TICKET: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")
_KEY_SHOWN_BYTES: Final = 60


def parse_tickets(texts: Sequence[str]) -> list[Ticket]:
    """Parse tickets, each PARTITION:OFFSET."""
    found = list[Ticket]()
    for text in texts:
        match = _TICKET.fullmatch(text)
        if match is None:
            raise UsageRefused(
                f"{text!r} is not a ticket: write PARTITION:OFFSET, such as 0:42, as"
                " `ottla delay list` shows it"
            )
        found.append(Ticket(int(match[1]), int(match[2])))
    return found


async def check_tickets(client: Client, topic: str, tickets: Sequence[Ticket]) -> None:
    """Refuse a topic whose records cannot wait, and partitions that it does not have.

    Without this a cancel would be an ordinary record there.
    """
    wanted = frozenset(ticket.partition for ticket in tickets)
    await count_waiting(client, await choose_partitions(client, {topic: wanted}))


def report_outcomes(
    topic: str, outcomes: dict[Ticket, CancelOutcome], tickets: Sequence[Ticket], *, json: bool
) -> int:
    """Print what became of each ticket; returns the exit code."""
    wanted = list(dict.fromkeys(tickets))
    if json:
        for ticket in wanted:
            terminal.write_json(
                {"topic": topic, "ticket": str(ticket), "outcome": outcomes[ticket].value}
            )
    else:
        terminal.write_table(
            ["TICKET", "OUTCOME"], [[str(ticket), outcomes[ticket].value] for ticket in wanted]
        )
    is_done = all(outcomes[ticket] is CancelOutcome.CANCELLED for ticket in wanted)
    return OK if is_done else FAILED


def format_wait(wait_ms: int) -> str:
    """How long a record still waits, for a table."""
    return format_duration(wait_ms) if wait_ms > 0 else "due"


def shown_key(key: bytes | None) -> str:
    """A key for a table."""
    if key is None:
        return ""
    text = terminal.one_line(key[:_KEY_SHOWN_BYTES].decode(errors="replace"))
    return text + ("..." if len(key) > _KEY_SHOWN_BYTES else "")


def key_field(key: bytes | None) -> dict[str, Any]:
    """A key for JSON: text, or base64 under another name."""
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key or b"").decode()}
