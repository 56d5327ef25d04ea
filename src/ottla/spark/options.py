"""The options of `format("ottla")`: the names and meanings of Spark's Kafka connector, and ours.

Names do not depend on case. An unknown name is an error, unless it begins with `kafka.`: those are
for Kafka's own client, and what of them has no meaning here is passed over.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from ottla.client.positions import AtTime, parse_log_position
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint, Offset, TimestampMs, TopicPartition, topic_name_problem
from ottla.records.compression import Codec

EARLIEST_OFFSET: Final = Offset(-2)  # in place of an offset, as in Spark's JSON
LATEST_OFFSET: Final = Offset(-1)
GROUP_LENGTH_MAX: Final = 200

DELAY_MS: Final = 15 * 60_000
TASK_BYTES: Final = 64 << 20
RECORD_BYTES: Final = 1000
CLIENT_ID: Final = "ottla-spark"
TIMEOUT_MS: Final = 60_000
POLL_MS: Final = 300
TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000  # the most that brokers allow unless told otherwise
FETCH_BYTES: Final = 32 << 20
PARTITION_FETCH_BYTES: Final = 8 << 20

T = TypeVar("T")


class OptionRefused(ValueError):
    """An option that cannot be; the text says which and what to write instead."""


# Where to read


@dataclass(frozen=True, slots=True)
class Topics:
    """These topics, all their partitions."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every topic whose whole name matches."""

    pattern: str

    def matches(self, topic: str) -> bool:
        return re.fullmatch(_python_pattern(self.pattern), topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions and no others."""

    tps: tuple[TopicPartition, ...]


Subscription = Topics | TopicPattern | Assigned


# From where to where


class Edge(StrEnum):
    """The two places every partition has."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """A place for each partition; -2 and -1 stand for the two edges."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class Since:
    """The first record that is not older, in every partition."""

    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class SinceEach:
    """A time of its own for each partition."""

    timestamps: Mapping[TopicPartition, TimestampMs]


@dataclass(frozen=True, slots=True)
class WhereGroupIs:
    """What a consumer group has committed; the earliest where it has committed nothing."""

    group: str


Bound = Edge | AtOffsets | Since | SinceEach | WhereGroupIs


class OnDataLoss(StrEnum):
    """What to do when records were removed before they were read."""

    FAIL = "fail"
    SKIP = "skip"  # go on behind what is missing
    EARLIEST = "earliest"  # the same; a topic that was made anew is read from its beginning


class ValueFormat(StrEnum):
    """What values become."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


class BadRows(StrEnum):
    """What becomes of a value that its format cannot read."""

    FAIL = "fail"  # the query ends, and names the record
    NULL = "null"  # a null, with the bytes beside it
    DEAD_LETTER = "deadletter"  # left out, and written to a topic of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one micro-batch may bring, and how little is worth one."""

    rows_max: int | None = None
    rows_min: int | None = None
    bytes_max: int | None = None
    delay_ms_max: int = DELAY_MS  # after so long a batch comes however small it is


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """How ranges are made into tasks."""

    bytes_target: int = TASK_BYTES
    tasks_min: int = 1
    tasks_max: int | None = None
    rows_max: int | None = None
    record_bytes: int = (
        RECORD_BYTES  # a guess, because a plan must not depend on what a broker says
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How to reach the cluster; also what its connections are shared by."""

    bootstrap: tuple[Endpoint, ...]
    addresses: tuple[tuple[BrokerId, Endpoint], ...] = ()
    client_id: str = CLIENT_ID
    timeout_ms: int = TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """What the schema depends on: the same for batches and streams."""

    include_headers: bool = False
    value_format: ValueFormat = ValueFormat.BINARY
    value_schema: str | None = None
    bad_rows: BadRows = BadRows.NULL
    dead_letter_topic: str | None = None

    @property
    def is_typed(self) -> bool:
        return self.value_schema is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Everything a reader has been told, checked."""

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
    columns: ColumnOptions = ColumnOptions()


_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_READ_NAMES: Final = (
    *_SUBSCRIPTIONS,
    *_STARTS,
    *_ENDS,
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
    "badRows",
    "deadLetterTopic",
    "brokerAddressMap",
    "filterPushdown",
    "pollTimeoutMs",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# What Spark's connector refuses, and why it makes no sense here either.
_REFUSED: Final = {
    "kafka.auto.offset.reset": "say where to start with startingOffsets",
    "kafka.key.deserializer": "keys are always bytes: cast them with Spark",
    "kafka.value.deserializer": "values are bytes, or what valueFormat says",
    "kafka.enable.auto.commit": "offsets are committed after every batch: see commitGroup",
    "kafka.interceptor.classes": "interceptors cannot run here",
}
_PLAIN_SECURITY: Final = "PLAINTEXT"


def parse_read_options(
    raw: Mapping[str, str], *, is_stream: bool, now_ms: TimestampMs
) -> ReadOptions:
    """Read what a user gave to `spark.read` or `spark.readStream`; `OptionRefused` says why not."""
    options = _Options(raw, _READ_NAMES)
    options.refuse_unknown()
    subscription, columns = _subscription(options), parse_columns(raw)
    _refuse_circle(subscription, columns.dead_letter_topic)
    return ReadOptions(
        brokers=parse_broker_options(raw),
        subscription=subscription,
        start=_start(options, is_stream, now_ms),
        end=_end(options, is_stream, now_ms),
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


class Delivery(StrEnum):
    """What a crash may do to what is written."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Everything a writer has been told, checked."""

    brokers: BrokerOptions
    topic: str | None = None  # for all rows, whatever their column says
    codec: Codec = Codec.NONE
    delivery: Delivery = Delivery.EXACTLY_ONCE
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    accepted_batch: int | None = None  # is written, its user says, whatever it looks like now


_WRITE_NAMES: Final = (
    "topic",
    "includeHeaders",
    "delivery",
    "transactionTimeout",
    "acceptBatch",
    "brokerAddressMap",
)
# What Spark itself adds to the options of a stream's sink.
_OF_SPARK: Final = ("checkpointLocation", "queryName", "outputMode")


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Read what a user gave to `write` or `writeStream`; `OptionRefused` says why not."""
    options = _Options(raw, (*_WRITE_NAMES, *_OF_SPARK))
    options.refuse_unknown()
    if options.text("kafka.transactional.id") is not None:
        raise OptionRefused(
            "kafka.transactional.id is not supported: every task has one of its own, made of"
            " its query and its partition"
        )
    options.truth("includeHeaders", False)  # as in Spark's connector, a column of headers is enough
    topic = options.text("topic")
    if topic is not None and (problem := topic_name_problem(topic)):
        raise OptionRefused(f"topic={topic}: {problem}")
    names = tuple(codec.name.lower() for codec in Codec)
    options.choose("kafka.acks", ("all", "-1"), "all")  # what trying again relies on
    return WriteOptions(
        brokers=parse_broker_options(raw),
        topic=topic,
        codec=Codec.named(options.choose("kafka.compression.type", names, "none")),
        delivery=Delivery(options.choose("delivery", tuple(Delivery), Delivery.EXACTLY_ONCE)),
        transaction_timeout_ms=_transaction_timeout_ms(options),
        accepted_batch=parse_accepted_batch(options.text("acceptBatch")),
    )


def parse_accepted_batch(text: str | None) -> int | None:
    """The number of a micro-batch that its user says is written."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise OptionRefused(f"acceptBatch={text} is not the number of a micro-batch")
    return int(text)


def parse_columns(raw: Mapping[str, str]) -> ColumnOptions:
    """Read what decides about columns."""
    options = _Options(raw, _READ_NAMES)
    value_format = ValueFormat(
        options.choose("valueFormat", tuple(ValueFormat), ValueFormat.BINARY)
    )
    bad_rows = _bad_rows(options, value_format)
    return ColumnOptions(
        include_headers=options.truth("includeHeaders", False),
        value_format=value_format,
        value_schema=_value_schema(options, value_format),
        bad_rows=bad_rows,
        dead_letter_topic=_dead_letter_topic(options, bad_rows),
    )


def parse_broker_options(raw: Mapping[str, str]) -> BrokerOptions:
    """Read how the cluster is reached: for readers and writers alike."""
    options = _Options(raw, ())
    servers = options.text("kafka.bootstrap.servers")
    if not servers:
        raise OptionRefused("kafka.bootstrap.servers is missing: say HOST:PORT of a broker")
    protocol = options.text("kafka.security.protocol") or _PLAIN_SECURITY
    if protocol.upper() != _PLAIN_SECURITY:
        raise OptionRefused(
            f"kafka.security.protocol={protocol} is not supported yet: only {_PLAIN_SECURITY} is"
        )
    return BrokerOptions(
        bootstrap=tuple(
            _parsed("kafka.bootstrap.servers", Endpoint.parse, part.strip())
            for part in servers.split(",")
        ),
        addresses=_addresses(options),
        client_id=options.text("kafka.client.id") or CLIENT_ID,
        timeout_ms=options.positive("kafka.default.api.timeout.ms") or TIMEOUT_MS,
    )


class _Options:
    """Options by name, whatever their case."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in raw.items()}
        self._known = known

    def refuse_unknown(self) -> None:
        for name, reason in _REFUSED.items():
            if name in self._values:
                raise OptionRefused(f"{name} is not supported: {reason}")
        known = {name.lower() for name in self._known}
        unknown = [
            name for name in self._values if name not in known and not name.startswith("kafka.")
        ]
        if unknown:
            raise OptionRefused(
                f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(self._known)}"
                " and kafka.*"
            )

    def given(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name.lower() in self._values]

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def positive(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise OptionRefused(f"{name}={text} is not a number of 1 or more")
        return int(text)

    def truth(self, name: str, default: bool) -> bool:
        return self.choose(name, ("true", "false"), str(default).lower()) == "true"

    def choose(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise OptionRefused(f"{name}={text} is none of {', '.join(choices)}")
        return text

    def size(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else _parsed(name, parse_size, text)

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        return default_ms if text is None else _parsed(name, parse_duration_ms, text)

    def json_object(self, name: str) -> dict[str, object]:
        text = self.text(name) or ""
        try:
            found = json.loads(text)
        except ValueError:
            raise OptionRefused(f"{name} is not JSON: {text}") from None
        if not isinstance(found, dict):
            raise OptionRefused(f'{name} is not a JSON object such as {{"topic":{{"0":42}}}}')
        return found


# Numbers as people write them

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def parse_size(text: str) -> int:
    """Bytes, with k, m, g or t for powers of 1024."""
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError("it is not a size such as 64m")
    return int(found[1]) << _SHIFTS[found[2].lower()]


def parse_duration_ms(text: str) -> int:
    """A duration as Spark writes it: 15m, 30s, 500ms; a number alone is in milliseconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("it is not a duration such as 15m, 30s or 500ms")
    return int(found[1]) * _MS[(found[2] or "ms").lower()]


def parse_time_ms(text: str, now_ms: TimestampMs) -> TimestampMs:
    """Milliseconds since 1970, a date with time such as 2026-11-15T00:00Z, or -2h."""
    word = text.strip()
    if word.isascii() and word.isdigit():
        return TimestampMs(int(word))
    try:
        moment = parse_log_position(word, now_ms)
    except UsageRefused:
        moment = None
    if not isinstance(moment, AtTime):
        raise ValueError("it is no time such as 2026-11-15T00:00Z, -2h or milliseconds since 1970")
    return moment.timestamp_ms


def _parsed(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as problem:
        raise OptionRefused(f"{name}={text}: {problem}") from None


# What to read


def _subscription(options: _Options) -> Subscription:
    given = options.given(_SUBSCRIPTIONS)
    if len(given) != 1:
        raise OptionRefused(
            f"give one of {', '.join(_SUBSCRIPTIONS)}"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = options.text(given[0]) or ""
    if given[0] == "subscribe":
        names = tuple(sorted({part.strip() for part in text.split(",")}))
        for name in names:
            if problem := topic_name_problem(name):
                raise OptionRefused(f"subscribe={text}: {problem}")
        return Topics(names)
    if given[0] == "subscribePattern":
        _parsed("subscribePattern", _check_pattern, text)
        return TopicPattern(text)
    found = options.json_object("assign")
    tps = [
        TopicPartition(topic, _index("assign", number))
        for topic, numbers in found.items()
        for number in (numbers if isinstance(numbers, list) else [None])
    ]
    if not tps:
        raise OptionRefused('assign names no partition; an example: {"topic":[0,1]}')
    return Assigned(tuple(sorted(set(tps))))


def _check_pattern(text: str) -> None:
    try:
        re.compile(_python_pattern(text))
    except re.error as problem:
        raise ValueError(f"it is not a regular expression ({problem})") from None


def _python_pattern(text: str) -> str:
    """A Java expression in Python's spelling: only groups with names are written differently."""
    return re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text)


def _index(name: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise OptionRefused(f"{name}: {number!r} is not a partition")
    return number


# From where to where


def _start(options: _Options, is_stream: bool, now_ms: TimestampMs) -> Bound:
    default = Edge.LATEST if is_stream else Edge.EARLIEST
    bound = _bound(options, _STARTS, default, now_ms)
    if not is_stream:
        _refuse_place(
            bound, Edge.LATEST, LATEST_OFFSET, "startingOffsets", "a batch would be empty"
        )
    return bound


def _end(options: _Options, is_stream: bool, now_ms: TimestampMs) -> Bound:
    given = options.given(_ENDS)
    if is_stream and given:
        raise OptionRefused(f"{given[0]} is for batch reads: a stream has no end")
    if (options.text("endingOffsets") or "").lower() == "group":
        raise OptionRefused("endingOffsets=group is not supported: it is a place to start")
    bound = _bound(options, _ENDS, Edge.LATEST, now_ms)
    _refuse_place(bound, Edge.EARLIEST, EARLIEST_OFFSET, "endingOffsets", "nothing lies before it")
    return bound


def _refuse_place(bound: Bound, edge: Edge, offset: Offset, name: str, reason: str) -> None:
    if bound is edge or (isinstance(bound, AtOffsets) and offset in bound.offsets.values()):
        raise OptionRefused(f"{name} cannot be {edge} ({offset}) here: {reason}")


def _bound(
    options: _Options, names: tuple[str, str, str], default: Edge, now_ms: TimestampMs
) -> Bound:
    """Where to start or end: one time, times by partition, or offsets, in this precedence."""
    time_name, times_name, offsets_name = names
    time = options.text(time_name)
    if time is not None:
        return Since(_parsed(time_name, lambda text: parse_time_ms(text, now_ms), time))
    if options.text(times_name) is not None:
        return SinceEach(
            {
                tp: _parsed(times_name, lambda text: parse_time_ms(text, now_ms), str(at))
                for tp, at in _by_partition(options, times_name).items()
            }
        )
    text = options.text(offsets_name)
    if text is None:
        return default
    if text.lower() in tuple(Edge):
        return Edge(text.lower())
    if text.lower() == "group":
        group = _named_group(options)
        if group is None:
            raise OptionRefused(f"{offsets_name}=group needs commitGroup or kafka.group.id")
        return WhereGroupIs(group)
    return AtOffsets(
        {tp: _offset(offsets_name, at) for tp, at in _by_partition(options, offsets_name).items()}
    )


def _offset(name: str, at: object) -> Offset:
    if isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST_OFFSET:
        raise OptionRefused(f"{name}: {at!r} is not an offset, nor -2 (earliest) or -1 (latest)")
    return Offset(at)


def _by_partition(options: _Options, name: str) -> dict[TopicPartition, object]:
    found = dict[TopicPartition, object]()
    for topic, places in options.json_object(name).items():
        if not isinstance(places, dict):
            raise OptionRefused(f'{name}: for {topic} write {{"0":42}}, a place by partition')
        for number, at in places.items():
            if not number.isdigit():
                raise OptionRefused(f"{name}: {number!r} is not a partition of {topic}")
            found[TopicPartition(topic, int(number))] = at
    return found


# The rest


def _on_data_loss(options: _Options) -> OnDataLoss:
    if options.text("onDataLoss") is not None:
        return OnDataLoss(options.choose("onDataLoss", tuple(OnDataLoss), OnDataLoss.FAIL))
    return OnDataLoss.FAIL if options.truth("failOnDataLoss", True) else OnDataLoss.SKIP


def _named_group(options: _Options) -> str | None:
    return options.text("commitGroup") or options.text("kafka.group.id") or None


def _group(options: _Options) -> str | None:
    """The group that shows a stream's progress; an empty commitGroup turns that off."""
    if options.text("commitGroup") == "":
        return None
    named = _named_group(options)
    if named is not None:
        return named
    prefix = options.text("groupIdPrefix") or "spark-ottla"
    what = next(filter(None, map(options.text, _SUBSCRIPTIONS)), "")
    return f"{prefix}-{re.sub(r'[^A-Za-z0-9._-]+', '-', what).strip('-')}"[:GROUP_LENGTH_MAX]


def _transaction_timeout_ms(options: _Options) -> int:
    name = next(iter(options.given(("transactionTimeout", "kafka.transaction.timeout.ms"))), None)
    if name is None:
        return TRANSACTION_TIMEOUT_MS
    timeout_ms = options.duration_ms(name, TRANSACTION_TIMEOUT_MS)
    if not 1 <= timeout_ms < 2**31:
        raise OptionRefused(f"{name}={options.text(name)} is not between 1 ms and 24 days")
    return timeout_ms


_SCHEMA_EXAMPLES: Final = {
    ValueFormat.JSON: "`id BIGINT, name STRING`",
    ValueFormat.AVRO: '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
}


def _value_schema(options: _Options, value_format: ValueFormat) -> str | None:
    schema = options.text("valueSchema")
    example = _SCHEMA_EXAMPLES.get(value_format)
    if example and not schema:
        raise OptionRefused(f"valueFormat={value_format} needs valueSchema, for example {example}")
    if schema and not example:
        raise OptionRefused(f"valueSchema is for valueFormat={' and '.join(_SCHEMA_EXAMPLES)}")
    return schema


def _bad_rows(options: _Options, value_format: ValueFormat) -> BadRows:
    if options.text("badRows") is not None and value_format not in _SCHEMA_EXAMPLES:
        raise OptionRefused(
            f"badRows is for valueFormat={' and '.join(_SCHEMA_EXAMPLES)}:"
            " other values are never read"
        )
    return BadRows(options.choose("badRows", tuple(BadRows), BadRows.NULL))


def _dead_letter_topic(options: _Options, bad_rows: BadRows) -> str | None:
    topic = options.text("deadLetterTopic")
    if (topic is not None) != (bad_rows is BadRows.DEAD_LETTER):
        raise OptionRefused("badRows=deadLetter and deadLetterTopic belong together: give both")
    if topic is not None and (problem := topic_name_problem(topic)):
        raise OptionRefused(f"deadLetterTopic={topic}: {problem}")
    return topic


def _refuse_circle(subscription: Subscription, dead_letter_topic: str | None) -> None:
    """A dead letter that is read again is a dead letter again, for ever."""
    if dead_letter_topic is not None and _reads(subscription, dead_letter_topic):
        raise OptionRefused(
            f"deadLetterTopic={dead_letter_topic} is one of the topics that are read"
        )


def _reads(subscription: Subscription, topic: str) -> bool:
    match subscription:
        case Topics(names):
            return topic in names
        case TopicPattern():
            return subscription.matches(topic)
        case Assigned(tps):
            return any(tp.topic == topic for tp in tps)


def _addresses(options: _Options) -> tuple[tuple[BrokerId, Endpoint], ...]:
    if options.text("brokerAddressMap") is None:
        return ()
    found = list[tuple[BrokerId, Endpoint]]()
    for number, address in options.json_object("brokerAddressMap").items():
        if not number.isdigit():
            raise OptionRefused(f"brokerAddressMap: {number!r} is not the id of a broker")
        found.append(
            (BrokerId(int(number)), _parsed("brokerAddressMap", Endpoint.parse, str(address)))
        )
    return tuple(sorted(found))
