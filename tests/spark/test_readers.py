"""The readers by themselves, as Spark calls them, against a real broker; no JVM takes part."""

import json
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from crash.processes import BrokerProcess
from ottla.client.errors import Unreachable
from ottla.spark.option_reader import OptionRefused
from ottla.spark.plan import DataLost
from ottla.spark.read_task import BadRow
from ottla.spark.source import StreamReader, batch_reader, stream_reader
from spark.task_context import task
from spark.topics import TIMEOUT_S, Topic

PLAIN = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
VALUE = StructType([StructField("value", StringType())])
NEW_TOPIC = Callable[..., Topic]
_numbers = count(1)


def read(options: dict[str, str], schema: StructType = VALUE) -> list[dict[str, object]]:
    """The rows of `spark.read`."""
    reader = batch_reader(options, schema)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def values(options: dict[str, str]) -> list[object]:
    return [row["value"] for row in read(options)]


def texts(numbers: range) -> list[str]:
    return [str(number) for number in numbers]


def planned(reader: StreamReader, start: dict, end: dict) -> list[str]:  # type: ignore[type-arg]
    """The values of one micro-batch."""
    return [
        row["value"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def latest(reader: StreamReader, start: dict) -> dict:  # type: ignore[type-arg]
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def stream(topic: Topic, **more: str) -> StreamReader:
    options = topic.options(**{"startingOffsets": "earliest", **more})
    reader = stream_reader(options, VALUE)
    assert isinstance(reader, StreamReader)
    return reader


# Batches


def test_a_batch_has_the_columns_of_sparks_connector(topic: Topic) -> None:
    topic.fill(range(2), key=b"k", headers=[("h", b"1"), ("h", None)])
    topic.fill(range(1))
    rows = read(topic.options(includeHeaders="true"), StructType([*PLAIN.fields, HEADERS]))
    assert [(row["key"], row["value"], row["topic"], row["partition"]) for row in rows] == [
        (b"k", b"0", topic.name, 0),
        (b"k", b"1", topic.name, 0),
        (None, b"0", topic.name, 0),
    ]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [1000, 1001, 1000]  # type: ignore[attr-defined]
    assert [row["timestampType"] for row in rows] == [0, 0, 0]
    both = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert [row["headers"] for row in rows] == [both, both, None]


@pytest.mark.parametrize(
    "schema",
    [
        PLAIN,
        StructType([*PLAIN.fields, HEADERS]),
        VALUE,
        StructType([StructField("offset", LongType()), StructField("key", StringType())]),
        StructType(
            [
                StructField("value", StructType([StructField("id", LongType())])),
                StructField("_corrupt", BinaryType()),
            ]
        ),
    ],
    ids=["plain", "headers", "text", "few", "json"],
)
def test_arrow_batches_have_the_schema_that_spark_compares_with(
    topic: Topic, schema: StructType
) -> None:
    topic.fill(['{"id": 1}', "no json", '{"id": 2}'])
    reader = batch_reader(topic.options(includeHeaders="true"), schema)
    batches = [one for part in reader.partitions() for one in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 3
    for batch in batches:
        assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)
        batch.validate(full=True)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(topic: Topic, codec: str) -> None:
    topic.fill(range(500), codec=codec)
    assert values(topic.options()) == texts(range(500))


def test_tasks_read_every_record_once_however_they_are_split(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(3)
    for partition in range(3):
        topic.fill(range(partition * 100, partition * 100 + 70), partition=partition)
    options = topic.options(minPartitions="7")
    assert len(batch_reader(options, VALUE).partitions()) == 7
    assert sorted(map(int, map(str, values(options)))) == [
        number + 100 * partition for partition in range(3) for number in range(70)
    ]


def test_a_batch_can_begin_and_end_anywhere(topic: Topic) -> None:
    topic.fill(range(10))
    by_offset = {
        "startingOffsets": json.dumps({topic.name: {"0": 3}}),
        "endingOffsets": json.dumps({topic.name: {"0": 5}}),
    }
    assert values(topic.options(**by_offset)) == ["3", "4"]
    assert values(topic.options(startingTimestamp="1007")) == ["7", "8", "9"]
    assert values(topic.options(endingTimestamp="1970-01-01T00:00:01.002Z")) == ["0", "1"]
    assert (
        values(topic.options(startingTimestamp="-2h", startingOffsetsByTimestampStrategy="latest"))
        == []
    )


def test_all_records_older_than_the_start_are_an_error_unless_the_end_is_meant(
    topic: Topic,
) -> None:
    topic.fill(range(3))
    with pytest.raises(OptionRefused, match="every record is older"):
        values(topic.options(startingTimestamp="2026-11-15T00:00Z"))


def test_an_empty_topic_is_an_empty_batch(topic: Topic) -> None:
    assert values(topic.options()) == []


def test_a_topic_that_is_not_there_is_named(topic: Topic) -> None:
    topic.delete()
    with pytest.raises(OptionRefused, match=f"no topic for subscribe={topic.name}"):
        values(topic.options())


def test_offsets_must_be_given_for_every_partition(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(2)
    with pytest.raises(OptionRefused, match=f"not for {topic.name}-1"):
        values(topic.options(startingOffsets=json.dumps({topic.name: {"0": 0}})))


def test_partitions_and_patterns_choose_what_is_read(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(2)
    topic.fill(["a"], partition=0)
    topic.fill(["b"], partition=1)
    options = topic.options()
    del options["subscribe"]
    assigned = options | {"assign": json.dumps({topic.name: [1]})}
    assert values(assigned) == ["b"]
    pattern = options | {"subscribePattern": f"{topic.name[:5]}.{topic.name[6:]}"}
    assert values(pattern) == ["a", "b"]
    with task(query_id=f"query-{topic.name}", batch_id=0):  # which remembers ids in a topic
        assert planned(stream(topic), {}, {topic.name: {"0": 1}}) == ["a"]
    everything = stream_reader(options | {"subscribePattern": ".*"}, VALUE)
    assert {topic.name} <= everything.initialOffset().keys()
    assert "__ottla_spark" not in everything.initialOffset()


def test_json_becomes_typed_and_what_cannot_be_read_is_kept(topic: Topic) -> None:
    good = [f'{{"id": {number}, "extra": [1]}}' for number in range(20)]
    topic.fill([*good[:7], "{no", '{"id": "x"}', *good[7:], "", "{} {}"])
    schema = StructType(
        [
            StructField("value", StructType([StructField("id", LongType())])),
            StructField("_corrupt", BinaryType()),
        ]
    )
    rows = read(topic.options(valueFormat="json", valueSchema="id BIGINT"), schema)
    assert [row["value"]["id"] for row in rows if row["_corrupt"] is None] == list(range(20))  # type: ignore[index]
    bad = [row["_corrupt"] for row in rows if row["_corrupt"] is not None]
    assert bad == [b"{no", b'{"id": "x"}', b"", b"{} {}"]
    assert all(row["value"] is None for row in rows if row["_corrupt"] is not None)


# Values that cannot be read

ID = StructType([StructField("id", LongType())])
TYPED = StructType([StructField("value", ID), StructField("offset", LongType())])
AVRO_ID = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'


def json_ids(topic: Topic, **more: str) -> dict[str, str]:
    return topic.options(valueFormat="json", valueSchema="id BIGINT", **more)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["value"]["id"] for row in rows]


def test_avro_becomes_typed_and_what_cannot_be_read_is_kept(topic: Topic) -> None:
    topic.fill(["\x02", "\x04", "\x04 and more", "", "\x06"])
    schema = StructType([StructField("value", ID), StructField("_corrupt", BinaryType())])
    rows = read(topic.options(valueFormat="avro", valueSchema=AVRO_ID), schema)
    assert ids([row for row in rows if row["_corrupt"] is None]) == [1, 2, 3]
    bad = [row["_corrupt"] for row in rows if row["value"] is None]
    assert bad == [b"\x04 and more", b""]


def test_fields_that_an_avro_schema_does_not_have_are_refused(topic: Topic) -> None:
    schema = StructType([StructField("value", StructType([StructField("id", StringType())]))])
    with pytest.raises(OptionRefused, match=r"value.id is int64 in valueSchema, not string"):
        batch_reader(topic.options(valueFormat="avro", valueSchema=AVRO_ID), schema)


def test_a_bad_row_ends_the_query_where_that_is_wanted(topic: Topic) -> None:
    topic.fill(['{"id": 1}', "broken"])
    with pytest.raises(BadRow, match=f"{topic.name}-0 offset 1: the value cannot be parsed"):
        read(json_ids(topic, badRows="fail"), TYPED)


def test_dead_letters_have_all_of_the_record_and_say_where_it_lay(new_topic: NEW_TOPIC) -> None:
    topic, dead = new_topic(2), f"dead-{next(_numbers)}"
    topic.fill(['{"id": 1}', "broken", '{"id": 3}'], partition=1, key=b"k", headers=[("h", b"1")])
    topic.fill(["no key"], partition=0)
    rows = read(json_ids(topic, badRows="deadLetter", deadLetterTopic=dead), TYPED)
    assert sorted(ids(rows)) == [1, 3]
    letters = read(
        Topic(topic.address, dead).options(includeHeaders="true"),
        StructType([*PLAIN.fields, HEADERS]),
    )
    found = {letter["value"]: letter for letter in letters}
    assert found.keys() == {b"broken", b"no key"}
    broken: dict[str, Any] = found[b"broken"]
    assert broken["key"] == b"k"
    said = {one["key"]: one["value"] for one in broken["headers"]}
    reason = said.pop("ottla.dead-letter.reason")
    assert said == {
        "h": b"1",
        "ottla.dead-letter.topic": topic.name.encode(),
        "ottla.dead-letter.partition": b"1",
        "ottla.dead-letter.offset": b"1",
        "ottla.dead-letter.timestamp": b"1001",
    }
    assert b"JSON" in reason


def test_a_task_that_is_run_again_writes_its_dead_letters_again(topic: Topic) -> None:
    topic.fill(["broken"])
    dead = Topic(topic.address, f"dead-{next(_numbers)}")
    reader = batch_reader(json_ids(topic, badRows="deadLetter", deadLetterTopic=dead.name), TYPED)
    (task,) = reader.partitions()
    for _ in range(2):
        assert [batch.num_rows for batch in reader.read(task)] == [0]
    assert values(dead.options()) == ["broken", "broken"]


def test_a_broker_that_advertises_what_cannot_be_reached_is_reached_elsewhere(
    topic: Topic,
) -> None:
    topic.fill(["here"])
    host = topic.address.partition(":")[0]
    wrong = json.dumps({"0": f"{host}:1", "1": f"{host}:1"})
    with pytest.raises(Unreachable, match=f"{host}:1"):
        values(topic.options(brokerAddressMap=wrong, kafka__default__api__timeout__ms="200"))
    right = json.dumps({"0": topic.address, "1": topic.address})
    assert values(topic.options(brokerAddressMap=right)) == ["here"]


# Streams


def test_a_stream_goes_on_where_it_was(topic: Topic) -> None:
    topic.fill(range(3))
    reader = stream(topic)
    start = reader.initialOffset()
    first = latest(reader, start)
    topic.fill(range(3, 5))
    second = latest(reader, first)
    assert first == {topic.name: {"0": 3}}
    assert planned(reader, start, first) == ["0", "1", "2"]
    assert planned(reader, first, second) == ["3", "4"]
    assert reader.reportLatestOffset() == second


def test_a_stream_begins_with_what_comes_next_by_default(topic: Topic) -> None:
    topic.fill(range(3))
    reader = stream(topic, startingOffsets="latest")
    start = reader.initialOffset()
    topic.fill(["new"])
    assert reader.initialOffset() == start == {topic.name: {"0": 3}}
    assert planned(reader, start, latest(reader, start)) == ["new"]


def test_a_first_batch_that_was_not_finished_begins_where_it_began(topic: Topic) -> None:
    topic.fill(range(3))
    killed = stream(topic, startingOffsets="latest")
    start = killed.initialOffset()
    topic.fill(range(3, 6))
    end = latest(killed, start)
    topic.fill(range(6, 8))
    again = stream(topic, startingOffsets="latest")
    later = again.initialOffset()
    assert later == {topic.name: {"0": 8}}
    assert planned(again, later, end) == texts(range(3, 6))
    assert planned(again, end, latest(again, end)) == texts(range(6, 8))


def test_a_first_batch_whose_beginning_nobody_knows_is_not_passed_over(topic: Topic) -> None:
    again = stream(topic, startingOffsets="latest", commitGroup="")
    with pytest.raises(DataLost, match=f"its start offsets are not known for {topic.name}-0"):
        again.partitions(again.initialOffset(), {topic.name: {"0": 5}})


def test_nothing_new_is_the_same_offset_after_a_wait(topic: Topic) -> None:
    topic.fill(range(3))
    reader = stream(topic, pollTimeoutMs="400")
    start = latest(reader, reader.initialOffset())
    before_s = time.monotonic()
    assert latest(reader, start) is start
    assert time.monotonic() - before_s > 0.3


def test_news_end_the_wait(topic: Topic) -> None:
    reader = stream(topic, pollTimeoutMs="30000", commitGroup="")
    start = reader.initialOffset()
    found = list[object]()
    waiting = threading.Thread(target=lambda: found.append(latest(reader, start)))
    before_s = time.monotonic()
    waiting.start()
    topic.fill(["news"])
    waiting.join(TIMEOUT_S)
    assert found == [{topic.name: {"0": 1}}]
    assert time.monotonic() - before_s < 29


def test_rows_are_limited_in_proportion(new_topic: NEW_TOPIC) -> None:
    topic = new_topic(2)
    topic.fill(range(90), partition=0)
    topic.fill(range(10), partition=1)
    reader = stream(topic, maxOffsetsPerTrigger="20")
    start = reader.initialOffset()
    assert latest(reader, start) == {topic.name: {"0": 18, "1": 2}}
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert everything == {topic.name: {"0": 90, "1": 10}}


def test_bytes_are_limited_by_what_records_take(topic: Topic) -> None:
    topic.fill(["x" * 1000] * 100)
    reader = stream(topic, maxBytesPerTrigger="20k")
    at = latest(reader, reader.initialOffset())[topic.name]["0"]
    assert 10 <= at <= 25


def test_too_little_waits_for_more_or_for_its_time(topic: Topic) -> None:
    topic.fill(range(3))
    patient = stream(topic, minOffsetsPerTrigger="5", maxTriggerDelay="10m")
    start = patient.initialOffset()
    assert latest(patient, start) is start
    topic.fill(range(3, 5))
    assert latest(patient, start) == {topic.name: {"0": 5}}
    hasty = stream(topic, minOffsetsPerTrigger="100", maxTriggerDelay="0s")
    assert latest(hasty, start) == {topic.name: {"0": 5}}


def test_a_new_partition_is_read_from_its_beginning(topic: Topic) -> None:
    topic.fill(["old"])
    reader = stream(topic)
    start = latest(reader, reader.initialOffset())
    topic.grow(2)
    topic.fill(["new"], partition=1)
    end = latest(reader, start)
    assert end == {topic.name: {"0": 1, "1": 1}}
    assert planned(reader, start, end) == ["new"]


def test_a_run_that_ends_by_itself_reads_what_was_there_when_it_began(topic: Topic) -> None:
    topic.fill(range(10))
    reader = stream(topic, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    start = at = reader.initialOffset()
    seen = list[str]()
    for _ in range(5):
        topic.fill(["late"])
        end = latest(reader, at)
        seen += planned(reader, at, end)
        if end == at:
            break
        at = end
    assert seen == texts(range(10))
    assert at != start


def test_progress_is_a_groups_progress_also_after_the_last_batch(topic: Topic) -> None:
    topic.fill(range(7))
    reader = stream(topic, commitGroup=f"group-of-{topic.name}")
    end = latest(reader, reader.initialOffset())
    latest(reader, end)
    group = {"bootstrap.servers": topic.address, "group.id": f"group-of-{topic.name}"}
    consumer = Consumer(group)
    (committed,) = consumer.committed([TopicPartition(topic.name, 0)], timeout=TIMEOUT_S)
    assert committed.offset == 7
    consumer.close()
    taking_over = stream(
        topic, startingOffsets="group", commitGroup=f"group-of-{topic.name}"
    ).initialOffset()
    assert taking_over == end


def test_progress_that_cannot_be_committed_stops_nothing(topic: Topic) -> None:
    topic.fill(range(2))
    name = f"busy-{topic.name}"
    member = Consumer({"bootstrap.servers": topic.address, "group.id": name})
    assigned = threading.Event()
    member.subscribe([topic.name], on_assign=lambda *_: assigned.set())
    for _ in range(600):
        member.poll(0.1)
        if assigned.is_set():
            break
    assert assigned.is_set()
    reader = stream(topic, commitGroup=name)
    end = latest(reader, reader.initialOffset())
    assert end == {topic.name: {"0": 2}}
    assert latest(reader, end) is end
    member.close()


# Losses


def test_a_loss_ends_the_query_and_names_what_is_missing(topic: Topic) -> None:
    topic.fill(range(10))
    reader = stream(topic)
    start = reader.initialOffset()
    topic.cut(4)
    with pytest.raises(
        DataLost, match=f"{topic.name}-0: offsets 0 to 3 are missing, the log begins at 4"
    ):
        latest(reader, start)


def test_a_loss_found_by_a_task_says_the_same(topic: Topic) -> None:
    topic.fill(range(10))
    reader = stream(topic)
    start = reader.initialOffset()
    end = latest(reader, start)
    topic.cut(4)
    with pytest.raises(DataLost, match="offsets 0 to 3 are missing"):
        planned(reader, start, end)


def test_a_reader_that_skips_reads_what_is_left(topic: Topic) -> None:
    topic.fill(range(10))
    for name in ({"failOnDataLoss": "false"}, {"onDataLoss": "skip"}, {"onDataLoss": "earliest"}):
        reader = stream(topic, **name)
        start = {topic.name: {"0": 0}}
        topic.cut(4)
        end = latest(reader, start)
        assert planned(reader, start, end) == texts(range(4, 10))


def test_a_topic_made_anew_is_noticed(topic: Topic) -> None:
    topic.fill(range(10))
    reader, again = stream(topic), stream(topic, onDataLoss="earliest")
    start = latest(reader, reader.initialOffset())
    topic.delete()
    with pytest.raises(DataLost, match="does not exist now"):
        latest(reader, start)
    topic.create()
    topic.fill(["new"])
    with pytest.raises(DataLost, match="was it created again"):
        latest(reader, start)
    end = latest(again, start)
    assert end == {topic.name: {"0": 1}}
    assert planned(again, start, end) == ["new"]


# A broker that goes away


@pytest.mark.parametrize("ranges", [1, 2])
def test_a_range_that_ends_behind_its_log_is_a_loss_and_holds_no_task_for_ever(
    new_topic: NEW_TOPIC, ranges: int
) -> None:
    """As the plan of a batch can be that was made for a topic before it was made anew."""
    topic = new_topic(2)
    for partition in range(2):
        topic.fill(range(5), partition=partition)
    start = {topic.name: {str(number): 2 for number in range(ranges)}}
    end = {topic.name: {str(number): 9 for number in range(ranges)}}
    short = {"kafka__default__api__timeout__ms": "1500"}
    with pytest.raises(DataLost, match=f"missing: {topic.name}-0: offsets 5 to 8"):
        planned(stream(topic, **short), start, end)
    skipping = stream(topic, onDataLoss="skip", **short)
    assert planned(skipping, start, end) == ["2", "3", "4"] * ranges


# Topics that are deleted and made anew


class Rested:
    """A query that read 100 records of a topic, and rested while the topic was made anew."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        topic.fill(range(60), partition=0)
        topic.fill(range(60, 100), partition=1)
        self.at = {topic.name: {"0": 60, "1": 40}}
        self.batch = 0
        assert len(self.run(stream(topic), {topic.name: {"0": 0, "1": 0}}, self.at)) == 100
        topic.delete()
        topic.create(2)
        topic.fill(range(1000, 1090), partition=0)
        topic.fill(range(1090, 1150), partition=1)

    def run(self, reader: StreamReader, start: dict, end: dict) -> list[int]:  # type: ignore[type-arg]
        """The rows of a micro-batch."""
        with task(query_id=f"query-{self.topic.name}", batch_id=self.batch):
            return sorted(map(int, planned(reader, start, end)))

    def go_on(self, **more: str) -> list[int]:
        """The rows of the next micro-batch, in a process without the first one's state."""
        reader = stream(
            self.topic, minPartitions="3", kafka__client__id=f"c{next(_numbers)}", **more
        )
        self.batch = 1
        return self.run(reader, self.at, latest(reader, self.at))


def test_a_topic_made_anew_behind_a_resting_query_is_a_loss(new_topic: NEW_TOPIC) -> None:
    query = Rested(new_topic(2))
    for _ in range(2):  # it stays one, however often the query is started
        with pytest.raises(
            DataLost, match=f"topic {query.topic.name} was deleted and created again"
        ):
            query.go_on()


def test_a_topic_made_anew_is_read_from_its_beginning_where_that_is_wanted(
    new_topic: NEW_TOPIC,
) -> None:
    query = Rested(new_topic(2))
    for _ in range(2):  # the same when the batch is repeated
        assert query.go_on(onDataLoss="earliest") == list(range(1000, 1150))
    query.batch, now = 2, {query.topic.name: {"0": 90, "1": 60}}
    query.topic.fill(range(1150, 1155))
    reader = stream(query.topic)
    assert query.run(reader, now, latest(reader, now)) == list(range(1150, 1155))


def test_a_topic_made_anew_is_read_on_where_the_query_was_with_skip(new_topic: NEW_TOPIC) -> None:
    query = Rested(new_topic(2))
    expected = [*range(1060, 1090), *range(1130, 1150)]
    for _ in range(2):
        assert query.go_on(onDataLoss="skip") == expected


def test_partitions_that_have_nothing_new_are_read_from_their_beginning_too(
    new_topic: NEW_TOPIC,
) -> None:
    query = Rested(new_topic(2))
    query.topic.delete()
    query.topic.create(2)
    query.topic.fill(range(40), partition=1)  # as many as were read of the first one
    query.topic.fill(range(100, 170), partition=0)
    assert query.go_on(onDataLoss="earliest") == [*range(40), *range(100, 170)]


def test_a_checkpoint_of_sparks_own_connector_knows_no_ids_and_goes_on(topic: Topic) -> None:
    topic.fill(range(10))
    reader, start = stream(topic), {topic.name: {"0": 4}}
    with task(query_id=f"query-{topic.name}", batch_id=7):
        assert planned(reader, start, latest(reader, start)) == texts(range(4, 10))


@pytest.mark.slow
def test_readers_wait_for_a_broker_that_comes_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", log_file=tmp_path / "log")
    broker.start()
    try:
        topic = Topic(broker.address, "outage")
        topic.create()
        topic.fill(range(5))
        reader = stream(topic)
        start = reader.initialOffset()
        end = latest(reader, start)
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        assert planned(reader, start, end) == texts(range(5))
        back.join(TIMEOUT_S)
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        assert latest(reader, end) == end
        back.join(TIMEOUT_S)
    finally:
        broker.end()
