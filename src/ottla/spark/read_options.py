"""All options of a reader of `format("ottla")`: those of Spark's Kafka connector, and ours.

An unknown name is an error, unless it begins with `kafka.`: those are for Kafka's own client, and
the ones without a meaning here are ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.model import TimestampMs
from ottla.spark.broker_options import BrokerOptions, parse_broker_options
from ottla.spark.column_options import ColumnOptions, parse_columns
from ottla.spark.offset_bounds import (
    END_NAMES,
    START_NAMES,
    Bound,
    Edge,
    named_group,
    parse_end,
    parse_start,
)
from ottla.spark.option_reader import OptionReader, OptionRefused
from ottla.spark.subscription import (
    SUBSCRIPTION_NAMES,
    Subscription,
    parse_subscription,
    reads_topic,
)

GROUP_LENGTH_MAX: Final = 200
DELAY_MS: Final = 15 * 60_000
TASK_BYTES: Final = 64 << 20
RECORD_BYTES: Final = 1000
POLL_MS: Final = 300
FETCH_BYTES: Final = 32 << 20
PARTITION_FETCH_BYTES: Final = 8 << 20
_READ_NAMES: Final = (
    *SUBSCRIPTION_NAMES,
    *START_NAMES,
    *END_NAMES,
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "targetBytesPerTask",
    "estimatedRecordBytes",
    "failOnDataLoss",
    "onDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "commitGroup",
    "valueFormat",
    "valueSchema",
    "valueSubject",
    "badRows",
    "deadLetterTopic",
    "brokerAddressMap",
    "filterPushdown",
    "pollTimeoutMs",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)


class OnDataLoss(StrEnum):
    """The reaction to records that were removed before they were read."""

    FAIL = "fail"
    SKIP = "skip"  # continue after the missing offsets
    EARLIEST = (
        "earliest"  # as skip; a topic that was created again is read from its earliest offset
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest and the smallest size of a micro-batch."""

    rows_max: int | None = None
    rows_min: int | None = None
    bytes_max: int | None = None
    delay_ms_max: int = DELAY_MS  # a batch comes after this time, however small


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """The number and size of the tasks of a batch."""

    bytes_target: int = TASK_BYTES
    tasks_min: int = 1
    tasks_max: int | None = None
    rows_max: int | None = None
    record_bytes: int = (
        RECORD_BYTES  # a guess, because a plan must not depend on what a broker says
    )


_DEFAULT_COLUMNS: Final = ColumnOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a reader, checked."""

    brokers: BrokerOptions
    subscription: Subscription
    start: Bound
    end: Bound = Edge.LATEST
    latest_if_all_older: bool = False
    limits: Limits = Limits()
    tasks: TaskSizes = TaskSizes()
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    is_committed_only: bool = True
    group: str | None = None
    pushes_filters: bool = False
    poll_ms: int = POLL_MS
    fetch_bytes_max: int = FETCH_BYTES
    partition_fetch_bytes_max: int = PARTITION_FETCH_BYTES
    columns: ColumnOptions = _DEFAULT_COLUMNS

    def reads(self, topic: str) -> bool:
        """True if the topic is subscribed to."""
        return reads_topic(self.subscription, topic)


def parse_read_options(
    raw: Mapping[str, str], *, is_stream: bool, now_ms: TimestampMs
) -> ReadOptions:
    """Parse the options of `spark.read` or `spark.readStream`; raises `OptionRefused`."""
    options = OptionReader(raw, _READ_NAMES)
    options.refuse_unknown()
    subscription, columns = parse_subscription(options), parse_columns(raw)
    _refuse_circle(subscription, columns.dead_letter_topic)
    return ReadOptions(
        brokers=parse_broker_options(raw),
        subscription=subscription,
        start=parse_start(options, is_stream, now_ms),
        end=parse_end(options, is_stream, now_ms),
        latest_if_all_older=options.choose(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        )
        == "latest",
        limits=Limits(
            rows_max=options.positive("maxOffsetsPerTrigger"),
            rows_min=options.positive("minOffsetsPerTrigger"),
            bytes_max=options.size("maxBytesPerTrigger"),
            delay_ms_max=options.duration_ms("maxTriggerDelay", DELAY_MS),
        ),
        tasks=TaskSizes(
            bytes_target=options.size("targetBytesPerTask") or TASK_BYTES,
            tasks_min=options.positive("minPartitions") or 1,
            tasks_max=options.positive("maxPartitions"),
            rows_max=options.positive("maxRecordsPerPartition"),
            record_bytes=options.positive("estimatedRecordBytes") or RECORD_BYTES,
        ),
        on_data_loss=_on_data_loss(options),
        is_committed_only=options.choose(
            "kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed"
        )
        == "read_committed",
        group=_group(options) if is_stream else None,
        pushes_filters=options.truth("filterPushdown", False),
        poll_ms=options.duration_ms("pollTimeoutMs", POLL_MS),
        fetch_bytes_max=options.size("kafka.fetch.max.bytes") or FETCH_BYTES,
        partition_fetch_bytes_max=options.size("kafka.max.partition.fetch.bytes")
        or PARTITION_FETCH_BYTES,
        columns=columns,
    )


def _on_data_loss(options: OptionReader) -> OnDataLoss:
    if options.text("onDataLoss") is not None:
        return OnDataLoss(options.choose("onDataLoss", tuple(OnDataLoss), OnDataLoss.FAIL))
    return OnDataLoss.FAIL if options.truth("failOnDataLoss", True) else OnDataLoss.SKIP


def _group(options: OptionReader) -> str | None:
    """The group that a stream commits its offsets to; None for an empty commitGroup."""
    if options.text("commitGroup") == "":
        return None
    named = named_group(options)
    if named is not None:
        return named
    prefix = options.text("groupIdPrefix") or "spark-ottla"
    what = next(filter(None, map(options.text, SUBSCRIPTION_NAMES)), "")
    return f"{prefix}-{re.sub(r'[^A-Za-z0-9._-]+', '-', what).strip('-')}"[:GROUP_LENGTH_MAX]


def _refuse_circle(subscription: Subscription, dead_letter_topic: str | None) -> None:
    """Refuse a dead letter topic that is subscribed to: its records would circulate for ever."""
    if dead_letter_topic is not None and reads_topic(subscription, dead_letter_topic):
        raise OptionRefused(
            f"deadLetterTopic={dead_letter_topic} is one of the topics that are read"
        )
