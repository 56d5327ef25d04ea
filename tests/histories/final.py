"""The logs and the groups' offsets as they are in the end, for the checker."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from histories.history import History, Released
from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.group_offsets import committed_offsets
from ottla.client.partitions import FetchLimits, Isolation, list_offsets
from ottla.client.reader import ReadRange, read
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import LATEST
from ottla.records.batch import Record
from ottla.records.hidden_records import SCHEDULE, TICKET

_LIMITS: Final = FetchLimits(wait_ms_max=200)


async def read_final(
    client: Client,
    history: History,
    tps: Sequence[TopicPartition],
    groups: Mapping[str, Sequence[TopicPartition]],
) -> None:
    """Note every record of `tps` and the offsets of the groups; or why they cannot be read."""
    try:
        history.final = await _read_all(client, tps, Isolation.READ_UNCOMMITTED)
        history.final_committed = await _read_all(client, tps, Isolation.READ_COMMITTED)
        for group, wanted in groups.items():
            found = await committed_offsets(client, group, wanted)
            history.final_offsets |= {(group, tp): found.get(tp) for tp in wanted}
    except ClientError as problem:
        history.unread = str(problem)


async def _read_all(
    client: Client, tps: Sequence[TopicPartition], isolation: Isolation
) -> dict[TopicPartition, list[tuple[int, str]]]:
    found: dict[TopicPartition, list[tuple[int, str]]] = {tp: [] for tp in tps}
    async for tp, record in _records(client, tps, isolation):
        found[tp].append((record.offset, _text(record)))
    return found


async def _records(
    client: Client, tps: Sequence[TopicPartition], isolation: Isolation
) -> AsyncIterator[tuple[TopicPartition, Record]]:
    ends = await list_offsets(client, dict.fromkeys(tps, LATEST), isolation)
    ranges = {tp: ReadRange(Offset(0), end) for tp, end in ends.items()}
    async for batches in read(client, ranges, isolation=isolation, limits=_LIMITS):
        for batch in batches:
            for record in batch.records():
                yield batch.tp, record


def _text(record: Record) -> str:
    return (record.value or b"").decode()


async def read_values(client: Client, tps: Sequence[TopicPartition]) -> list[str]:
    """The values of all records of partitions."""
    found = await _read_all(client, tps, Isolation.READ_UNCOMMITTED)
    return [value for records in found.values() for _, value in records]


async def read_released(client: Client, tps: Sequence[TopicPartition]) -> list[Released]:
    """The records of partitions in which some waited, with the tickets that they had."""
    found = []
    async for tp, record in _records(client, tps, Isolation.READ_COMMITTED):
        headers = dict(record.headers)
        found.append(
            Released(
                tp,
                record.offset,
                _text(record),
                record.timestamp_ms,
                _number(headers.get(TICKET)),
                _number(headers.get(SCHEDULE)),
            )
        )
    return found


def _number(text: bytes | None) -> int | None:
    return None if text is None else int(text)
