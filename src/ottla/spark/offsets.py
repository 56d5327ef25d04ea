"""Partitions of a subscription, and the offsets that options mean, looked up in the cluster."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    NoSuchTopic,
    Unreachable,
)
from ottla.client.group_offsets import committed_offsets
from ottla.client.partitions import FetchLimits, Isolation, fetch, list_offsets
from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST
from ottla.spark.offset_bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    Bound,
    Edge,
    FromTime,
    FromTimes,
    GroupOffsets,
)
from ottla.spark.option_reader import OptionRefused
from ottla.spark.read_options import ReadOptions
from ottla.spark.state_topic import TOPIC as STATE_TOPIC
from ottla.spark.subscription import Assigned, Subscription, TopicPattern, Topics

_RETRIED: Final = (Unreachable, ConnectionLost, DeadlineExceeded)


@dataclass(frozen=True, slots=True)
class LogEdges:
    """The earliest offset of each partition, and its end at the reader's isolation level."""

    earliest: Mapping[TopicPartition, Offset]
    latest: Mapping[TopicPartition, Offset]


def isolation_of(options: ReadOptions) -> Isolation:
    """The isolation level of the reader."""
    return Isolation.READ_COMMITTED if options.is_committed_only else Isolation.READ_UNCOMMITTED


async def partitions_of(client: Client, subscription: Subscription) -> list[TopicPartition]:
    """The existing partitions of a subscription; a topic that does not exist has none."""
    return await client.retry(lambda: _partitions_of(client, subscription), on=_RETRIED)


async def _partitions_of(client: Client, subscription: Subscription) -> list[TopicPartition]:
    match subscription:
        case Topics(names):
            return sorted(await _existing_partitions(client, names))
        case TopicPattern():
            view = await client.describe(None)
            return sorted(
                TopicPartition(name, item.index)
                for name, topic in view.topics.items()
                if not topic.is_internal and name != STATE_TOPIC and subscription.matches(name)
                for item in topic.partitions
            )
        case Assigned(tps):
            there = await _existing_partitions(client, sorted({tp.topic for tp in tps}))
            return sorted(there.intersection(tps))


async def _existing_partitions(client: Client, names: Sequence[str]) -> set[TopicPartition]:
    try:
        view = await client.describe(names)
    except NoSuchTopic:
        if len(names) == 1:
            return set()
        return set[TopicPartition]().union(
            *[await _existing_partitions(client, [name]) for name in names]
        )
    return {
        TopicPartition(name, item.index) for name in names for item in view.topics[name].partitions
    }


async def topic_ids_of(client: Client, topics: Iterable[str]) -> dict[str, str]:
    """The ids of topics as hexadecimal digits; without those that do not exist or have none."""

    async def find(topic: str) -> str | None:
        try:
            view = await client.retry(lambda: client.describe([topic]), on=_RETRIED)
        except NoSuchTopic:
            return None
        id_ = view.topics[topic].id
        return id_.hex() if any(id_) else None  # brokers before Kafka 2.8 have none

    names = sorted(set(topics))
    ids = await asyncio.gather(*map(find, names))
    return {name: id_ for name, id_ in zip(names, ids, strict=True) if id_ is not None}


async def find_log_edges(client: Client, options: ReadOptions) -> LogEdges:
    """The current edges of all subscribed partitions."""
    tps = await partitions_of(client, options.subscription)
    earliest, latest = await asyncio.gather(
        _list_known_offsets(client, dict.fromkeys(tps, EARLIEST), options),
        _list_known_offsets(client, dict.fromkeys(tps, LATEST), options),
    )
    return LogEdges(earliest, latest)


async def _list_known_offsets(
    client: Client, timestamps: Mapping[TopicPartition, int], options: ReadOptions
) -> dict[TopicPartition, Offset]:
    if not timestamps:
        return {}
    found = await list_offsets(client, timestamps, isolation_of(options))
    return {tp: at for tp, at in found.items() if at is not None}


async def wait_for_records(
    client: Client, positions: Mapping[TopicPartition, Offset], options: ReadOptions
) -> None:
    """Return when a partition has grown beyond its position, or after pollTimeoutMs.

    Uses fetches that brokers hold until there are records, instead of polling.
    """
    limits = FetchLimits(
        wait_ms_max=options.poll_ms, bytes_min=1, bytes_max=1, partition_bytes_max=1
    )
    try:
        waiting = [
            asyncio.ensure_future(
                fetch(
                    client,
                    leader,
                    {tp: positions[tp] for tp in tps},
                    limits=limits,
                    isolation=isolation_of(options),
                )
            )
            for leader, tps in (await client.by_leader(positions)).items()
        ]
        if not waiting:
            await asyncio.sleep(options.poll_ms / 1000)
            return
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in pending:
            one.cancel()
        for one in done:
            one.result()
    except ClientError:
        # The ListOffsets request that follows meets the same error and reports it. Leaders may
        # have changed: refresh the metadata for the next wait.
        await asyncio.sleep(options.poll_ms / 1000)
        with suppress(ClientError):
            await client.describe(sorted({tp.topic for tp in positions}))


async def resolve_start(client: Client, options: ReadOptions) -> dict[TopicPartition, Offset]:
    """The offsets that a reader starts at."""
    return await _resolve(client, options, options.start, is_start=True)


async def resolve_end(client: Client, options: ReadOptions) -> dict[TopicPartition, Offset]:
    """The offsets at which a batch reader ends (exclusive)."""
    return await _resolve(client, options, options.end, is_start=False)


async def _resolve(
    client: Client, options: ReadOptions, bound: Bound, *, is_start: bool
) -> dict[TopicPartition, Offset]:
    edges = await find_log_edges(client, options)
    tps = edges.latest.keys()
    if not tps:
        raise OptionRefused(f"there is no topic for {_describe_subscription(options.subscription)}")
    match bound:
        case Edge.EARLIEST:
            return dict(edges.earliest)
        case Edge.LATEST:
            return dict(edges.latest)
        case AtOffsets(offsets):
            _check_covers(offsets, tps, "offsets")
            return {tp: _resolve_special(tp, offsets[tp], edges) for tp in tps}
        case FromTime(timestamp_ms):
            times = dict.fromkeys(tps, timestamp_ms)
            return await _offsets_at_times(client, options, times, edges, is_start=is_start)
        case FromTimes(timestamps):
            _check_covers(timestamps, tps, "timestamps")
            return await _offsets_at_times(client, options, timestamps, edges, is_start=is_start)
        case GroupOffsets(group):
            committed = await committed_offsets(client, group, tps)
            return {tp: committed.get(tp, edges.earliest[tp]) for tp in tps}


def _resolve_special(tp: TopicPartition, at: Offset, edges: LogEdges) -> Offset:
    if at == EARLIEST_OFFSET:
        return edges.earliest[tp]
    return edges.latest[tp] if at == LATEST_OFFSET else at


async def _offsets_at_times(
    client: Client,
    options: ReadOptions,
    timestamps: Mapping[TopicPartition, TimestampMs],
    edges: LogEdges,
    *,
    is_start: bool,
) -> dict[TopicPartition, Offset]:
    """The first offsets not older than each timestamp; the end where all records are older."""
    found = await _list_known_offsets(client, timestamps, options)
    older = sorted(timestamps.keys() - found.keys())
    if older and is_start and not options.latest_if_all_older:
        raise OptionRefused(
            f"{', '.join(map(str, older))}: every record is older than the starting time;"
            " to begin with the next one set startingOffsetsByTimestampStrategy=latest"
        )
    return {tp: found.get(tp, edges.latest[tp]) for tp in timestamps}


def _check_covers(
    given: Mapping[TopicPartition, object], tps: Iterable[TopicPartition], what: str
) -> None:
    """Refuse offsets or timestamps for some partitions only, as Spark's connector does."""
    there = set(tps)
    if missing := sorted(there - given.keys()):
        raise OptionRefused(
            f"{what} are given by partition, but not for {', '.join(map(str, missing))};"
            " -2 means earliest and -1 latest"
        )
    if unknown := sorted(given.keys() - there):
        raise OptionRefused(
            f"{what} are given for {', '.join(map(str, unknown))}, which are not subscribed to"
        )


def _describe_subscription(subscription: Subscription) -> str:
    match subscription:
        case Topics(names):
            return f"subscribe={','.join(names)}"
        case TopicPattern(pattern):
            return f"subscribePattern={pattern}"
        case Assigned(tps):
            return f"assign={', '.join(map(str, tps))}"


async def measure_record_bytes(
    client: Client, edges: LogEdges, guess_bytes: int
) -> dict[TopicPartition, float]:
    """Average bytes of a record by partition, from sizes on disk; `guess_bytes` where unknown."""
    from ottla.client.admin import sizes_on_leaders  # noqa: PLC0415  # only limits in bytes need it

    try:
        sizes = await sizes_on_leaders(client, list(edges.latest))
    except ClientError:  # not authorized, or not available: guess
        sizes = {}
    found = dict[TopicPartition, float]()
    for tp, end in edges.latest.items():
        count = end - edges.earliest[tp]
        size_bytes = sizes.get(tp, 0)
        found[tp] = max(1.0, size_bytes / count) if count and size_bytes else float(guess_bytes)
    return found
