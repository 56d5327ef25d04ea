"""`ottla topic trim`: deletes the records of partitions before a position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.cli.partition_choice import choose_partitions
from ottla.cli.read_ranges import locate, log_edges
from ottla.client.admin import delete_records
from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.partitions import Isolation
from ottla.client.positions import LogPosition
from ottla.errors import ErrorCode
from ottla.model import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedPartition:
    """A partition with its first offset before and after, and where it ends."""

    topic: str
    partition: int
    before: Offset
    start: Offset
    end: Offset

    def as_json(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "previous_start_offset": self.before,
            "start_offset": self.start,
            "end_offset": self.end,
        }


async def trim_topic(
    client: Client, choices: Mapping[str, frozenset[int] | None], position: LogPosition
) -> list[TrimmedPartition]:
    """Delete the records before a position, of all chosen partitions or of none."""
    tps = await choose_partitions(client, choices)
    starts, ends = await log_edges(client, tps, Isolation.READ_UNCOMMITTED)
    wanted = await locate(client, tps, position, ends, Isolation.READ_UNCOMMITTED)
    for tp in tps:
        if wanted[tp] > ends[tp]:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                str(tp),
                f"it ends at offset {ends[tp]}, before {wanted[tp]}; nothing was deleted",
            )
    found = await delete_records(client, {tp: wanted[tp] for tp in tps if wanted[tp] > starts[tp]})
    return [
        TrimmedPartition(
            topic=tp.topic,
            partition=tp.partition,
            before=starts[tp],
            start=found.get(tp, starts[tp]),
            end=ends[tp],
        )
        for tp in tps
    ]
