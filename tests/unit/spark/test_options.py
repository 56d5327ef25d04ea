"""Options mean what they mean to Spark's Kafka connector; what cannot be is refused in words."""

import pytest

from ottla.model import Endpoint, Offset, TimestampMs, TopicPartition
from ottla.spark.column_options import BadRows, ValueFormat, parse_columns
from ottla.spark.offset_bounds import AtOffsets, Edge, FromTime, FromTimes, GroupOffsets
from ottla.spark.option_reader import OptionRefused, parse_duration_ms, parse_size
from ottla.spark.read_options import OnDataLoss, ReadOptions, parse_read_options
from ottla.spark.subscription import Assigned, TopicPattern, Topics
from ottla.spark.write_options import Delivery, parse_write_options

NOW_MS = TimestampMs(1_800_000_000_000)
LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def stream(**more: str) -> ReadOptions:
    return parse_read_options(_with(more), is_stream=True, now_ms=NOW_MS)


def batch(**more: str) -> ReadOptions:
    return parse_read_options(_with(more), is_stream=False, now_ms=NOW_MS)


def _with(more: dict[str, str]) -> dict[str, str]:
    return LEAST | {name.replace("__", "."): value for name, value in more.items()}


def test_the_least_that_can_be_said_has_the_connectors_defaults() -> None:
    options = stream()
    assert options.brokers.bootstrap == (Endpoint("127.0.0.1", 9092),)
    assert options.subscription == Topics(("orders",))
    assert options.start is Edge.LATEST
    assert batch().start is Edge.EARLIEST
    assert batch().end is Edge.LATEST
    assert options.on_data_loss is OnDataLoss.FAIL
    assert options.is_committed_only
    assert not parse_columns(LEAST).include_headers
    assert options.limits.delay_ms_max == 15 * 60_000


def test_names_do_not_depend_on_case() -> None:
    assert stream(STARTINGOFFSETS="Earliest").start is Edge.EARLIEST
    assert parse_columns({"includeheaders": "TRUE"}).include_headers


@pytest.mark.parametrize("name", ["startingOffset", "topic", "group.id", "path"])
def test_a_name_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(OptionRefused, match=f"unknown option {name.lower()}"):
        parse_read_options(LEAST | {name: "x"}, is_stream=True, now_ms=NOW_MS)


def test_what_is_for_kafkas_client_is_passed_over() -> None:
    assert stream(kafka__session__timeout__ms="1").subscription == Topics(("orders",))


@pytest.mark.parametrize(
    "name", ["kafka.auto.offset.reset", "kafka.enable.auto.commit", "kafka.value.deserializer"]
)
def test_what_the_connector_refuses_is_refused(name: str) -> None:
    with pytest.raises(OptionRefused, match=name):
        parse_read_options(LEAST | {name: "x"}, is_stream=True, now_ms=NOW_MS)


def test_several_topics_are_told_apart_and_sorted() -> None:
    options = stream(subscribe="b, a,b")
    assert options.subscription == Topics(("a", "b"))


def test_a_pattern_is_javas_and_matches_whole_names() -> None:
    raw = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "(?<kind>log|audit)-.*"}
    pattern = parse_read_options(raw, is_stream=True, now_ms=NOW_MS).subscription
    assert isinstance(pattern, TopicPattern)
    assert pattern.matches("log-1")
    assert not pattern.matches("my-log-1")


def test_partitions_can_be_assigned() -> None:
    raw = {"kafka.bootstrap.servers": "h:1", "assign": '{"b":[1,0],"a":[2]}'}
    options = parse_read_options(raw, is_stream=True, now_ms=NOW_MS)
    assert options.subscription == Assigned(
        (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    )


def test_exactly_one_way_to_subscribe_is_needed() -> None:
    with pytest.raises(OptionRefused, match="not subscribe and assign"):
        stream(assign='{"a":[0]}')
    with pytest.raises(OptionRefused, match="give one of subscribe, subscribePattern, assign"):
        parse_read_options({"kafka.bootstrap.servers": "h:1"}, is_stream=True, now_ms=NOW_MS)


def test_offsets_by_partition_keep_the_names_of_the_edges() -> None:
    start = stream(startingOffsets='{"orders":{"0":23,"1":-2,"2":-1}}').start
    assert start == AtOffsets(
        {
            TopicPartition("orders", 0): Offset(23),
            TopicPartition("orders", 1): Offset(-2),
            TopicPartition("orders", 2): Offset(-1),
        }
    )


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-15T00:00Z", 1_794_700_800_000),
        ("2026-11-15T02:00+02:00", 1_794_700_800_000),
        ("-2h", NOW_MS - 7_200_000),
    ],
)
def test_a_time_can_be_written_by_people(text: str, expected_ms: int) -> None:
    assert stream(startingTimestamp=text).start == FromTime(TimestampMs(expected_ms))


def test_times_win_over_times_by_partition_and_those_over_offsets() -> None:
    by_partition = '{"orders":{"0":"2026-11-15T00:00Z","1":5}}'
    both = stream(startingOffsetsByTimestamp=by_partition, startingOffsets="earliest")
    assert both.start == FromTimes(
        {
            TopicPartition("orders", 0): TimestampMs(1_794_700_800_000),
            TopicPartition("orders", 1): TimestampMs(5),
        }
    )
    all_three = stream(
        startingTimestamp="7", startingOffsetsByTimestamp=by_partition, startingOffsets="earliest"
    )
    assert all_three.start == FromTime(TimestampMs(7))


def test_a_stream_can_take_over_from_a_group() -> None:
    assert stream(startingOffsets="group", kafka__group__id="old").start == GroupOffsets("old")
    with pytest.raises(OptionRefused, match="needs commitGroup"):
        stream(startingOffsets="group")


def test_progress_is_committed_unless_it_is_turned_off() -> None:
    assert stream().group == "spark-ottla-orders"
    assert stream(groupIdPrefix="app").group == "app-orders"
    assert stream(commitGroup="mine", kafka__group__id="other").group == "mine"
    assert stream(commitGroup="").group is None
    assert batch().group is None


def test_data_loss_has_two_spellings() -> None:
    assert stream(failOnDataLoss="false").on_data_loss is OnDataLoss.SKIP
    assert stream(onDataLoss="earliest").on_data_loss is OnDataLoss.EARLIEST


def test_values_can_be_typed() -> None:
    assert parse_columns({"valueFormat": "string"}).value_format is ValueFormat.STRING
    assert parse_columns(AVRO).value_schema == AVRO["valueSchema"]


AVRO = {
    "valueFormat": "avro",
    "valueSchema": '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
}


def test_bad_rows_are_null_unless_something_else_is_wanted() -> None:
    assert parse_columns(AVRO).bad_rows is BadRows.NULL
    assert parse_columns(AVRO | {"badRows": "fail"}).bad_rows is BadRows.FAIL
    aside = parse_columns(AVRO | {"badRows": "deadLetter", "deadLetterTopic": "dead"})
    assert aside.bad_rows is BadRows.DEAD_LETTER
    assert aside.dead_letter_topic == "dead"


@pytest.mark.parametrize(
    "reading",
    [{"subscribe": "a,dead"}, {"subscribePattern": "d.*"}, {"assign": '{"dead":[0]}'}],
    ids=lambda reading: next(iter(reading)),
)
def test_dead_letters_do_not_go_where_they_are_read(reading: dict[str, str]) -> None:
    aside = AVRO | {"badRows": "deadLetter", "deadLetterTopic": "dead"}
    raw = {"kafka.bootstrap.servers": "h:1"} | reading | aside
    with pytest.raises(OptionRefused, match="is one of the topics that are read"):
        parse_read_options(raw, is_stream=True, now_ms=NOW_MS)
    parse_read_options(raw | {"deadLetterTopic": "other"}, is_stream=True, now_ms=NOW_MS)


def test_brokers_can_be_reached_elsewhere() -> None:
    options = stream(brokerAddressMap='{"1":"proxy:19092"}')
    assert options.brokers.addresses == ((1, Endpoint("proxy", 19092)),)


@pytest.mark.parametrize(
    ("is_stream", "name", "value", "words"),
    [
        (False, "startingOffsets", "latest", "a batch would be empty"),
        (False, "startingOffsets", '{"orders":{"0":-1}}', "a batch would be empty"),
        (False, "endingOffsets", "earliest", "no record is before it"),
        (False, "endingOffsets", "group", "only startingOffsets can be group"),
        (True, "endingOffsets", "latest", "a stream has no end"),
        (True, "startingOffsets", "[]", "not a JSON object"),
        (True, "startingOffsets", "{", "is not JSON"),
        (True, "startingOffsets", '{"orders":{"0":-3}}', "not an offset"),
        (True, "startingOffsets", '{"orders":{"x":1}}', "not a partition"),
        (True, "startingOffsets", '{"orders":5}', "an offset or time by partition"),
        (True, "startingTimestamp", "yesterday", "it is not a time"),
        (True, "startingTimestamp", "beginning", "it is not a time"),
        (True, "maxOffsetsPerTrigger", "0", "not a number of 1 or more"),
        (True, "maxTriggerDelay", "soon", "not a duration"),
        (True, "maxBytesPerTrigger", "much", "not a size"),
        (True, "failOnDataLoss", "perhaps", "none of true, false"),
        (True, "onDataLoss", "cry", "none of fail, skip, earliest"),
        (True, "kafka.security.protocol", "SASL_SSL", "not supported yet"),
        (True, "kafka.bootstrap.servers", "nowhere", "not HOST:PORT"),
        (True, "kafka.bootstrap.servers", "", "is missing"),
        (True, "brokerAddressMap", '{"x":"h:1"}', "not the id of a broker"),
        (True, "subscribe", "a b", "a topic name consists of"),
    ],
)
def test_nonsense_is_refused_with_a_reason(
    is_stream: bool, name: str, value: str, words: str
) -> None:
    with pytest.raises(OptionRefused, match=words):
        parse_read_options(LEAST | {name: value}, is_stream=is_stream, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("valueFormat", "JSON", r"parsed by Spark, with ottla\.spark\.with_json_values"),
        ("valueFormat", "avro", 'needs valueSchema, for example {"type":"record"'),
        ("valueFormat", "xml", "none of binary, string, avro"),
        ("valueSchema", "id BIGINT", "is for valueFormat=avro"),
        ("badRows", "fail", "is for valueFormat=avro"),
        ("deadLetterTopic", "dead", "belong together"),
    ],
)
def test_columns_that_cannot_be_are_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionRefused, match=words):
        parse_columns({name: value})


def test_rows_are_written_exactly_once_unless_told_otherwise() -> None:
    least = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    options = parse_write_options(least)
    assert options.delivery is Delivery.EXACTLY_ONCE
    assert options.transaction_timeout_ms == 15 * 60_000  # the most that brokers allow by default
    assert options.accepted_batch is None
    assert parse_write_options(least | {"acceptBatch": "7"}).accepted_batch == 7
    assert parse_write_options(least | {"transactionTimeout": "90s"}).transaction_timeout_ms == (
        90_000
    )
    kafkas = parse_write_options(least | {"kafka.transaction.timeout.ms": "7000"})
    assert kafkas.transaction_timeout_ms == 7000
    at_least = parse_write_options(least | {"delivery": "At-Least-Once"})
    assert at_least.delivery is Delivery.AT_LEAST_ONCE


def test_sizes_and_durations_are_read_as_spark_writes_them() -> None:
    assert [parse_size(text) for text in ("10", "1k", "64m", "2g", "3MiB")] == [
        10,
        1 << 10,
        64 << 20,
        2 << 30,
        3 << 20,
    ]
    assert [parse_duration_ms(text) for text in ("10", "5ms", "2s", "15m", "1min", "2h", "1d")] == [
        10,
        5,
        2000,
        900_000,
        60_000,
        7_200_000,
        86_400_000,
    ]
