"""Batch readers called as Spark calls them, against a real broker; no JVM takes part."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ottla.client.errors import Unreachable
from ottla.spark.option_reader import OptionRefused
from ottla.spark.read_task import BadRow
from ottla.spark.source import BatchReader, batch_reader, stream_reader
from spark.direct_readers import (
    HEADERS,
    NEW_TOPIC,
    PLAIN,
    VALUE,
    _numbers,
    planned,
    read,
    stream,
    texts,
    values,
)
from spark.task_context import task
from spark.topics import Topic


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
    times = [row["timestamp"] for row in rows]
    assert times == [datetime.fromtimestamp(ms / 1000, UTC) for ms in (1000, 1001, 1000)]
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
    ids=["plain", "headers", "text", "few", "avro"],
)
def test_arrow_batches_have_the_schema_that_spark_compares_with(
    topic: Topic, schema: StructType
) -> None:
    topic.fill(["\x02", "no avro", "\x04"])
    typed = {"valueFormat": "avro", "valueSchema": AVRO_ID}
    reader = batch_reader(topic.options(includeHeaders="true", **typed), schema)
    assert isinstance(reader, BatchReader)
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


# Values that cannot be read

ID = StructType([StructField("id", LongType())])
TYPED = StructType([StructField("value", ID), StructField("offset", LongType())])
AVRO_ID = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'


def avro_ids(topic: Topic, **more: str) -> dict[str, str]:
    return topic.options(valueFormat="avro", valueSchema=AVRO_ID, **more)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["value"]["id"] for row in rows]


def test_avro_becomes_typed_and_what_cannot_be_read_is_kept(topic: Topic) -> None:
    topic.fill(["\x02", "\x04", "\x04 and more", "", "\x06"])
    schema = StructType([StructField("value", ID), StructField("_corrupt", BinaryType())])
    rows = read(topic.options(valueFormat="avro", valueSchema=AVRO_ID), schema)
    assert ids([row for row in rows if row["_corrupt"] is None]) == [1, 2, 3]
    bad = [row["_corrupt"] for row in rows if row["value"] is None]
    assert bad == [b"\x04 and more", b""]


def test_a_struct_is_refused_where_values_are_not_avro(topic: Topic) -> None:
    with pytest.raises(OptionRefused, match="JSON is parsed by Spark"):
        batch_reader(topic.options(), TYPED)


def test_fields_that_an_avro_schema_does_not_have_are_refused(topic: Topic) -> None:
    schema = StructType([StructField("value", StructType([StructField("id", StringType())]))])
    with pytest.raises(OptionRefused, match=r"value.id is int64 in valueSchema, not string"):
        batch_reader(topic.options(valueFormat="avro", valueSchema=AVRO_ID), schema)


def test_a_bad_row_ends_the_query_where_that_is_wanted(topic: Topic) -> None:
    topic.fill(["\x02", "broken"])
    with pytest.raises(BadRow, match=f"{topic.name}-0 offset 1: the value cannot be parsed"):
        read(avro_ids(topic, badRows="fail"), TYPED)


def test_dead_letters_have_all_of_the_record_and_say_where_it_lay(new_topic: NEW_TOPIC) -> None:
    topic, dead = new_topic(2), f"dead-{next(_numbers)}"
    topic.fill(["\x02", "broken", "\x06"], partition=1, key=b"k", headers=[("h", b"1")])
    topic.fill(["no key"], partition=0)
    rows = read(avro_ids(topic, badRows="deadLetter", deadLetterTopic=dead), TYPED)
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
    assert reason == b"5 unread bytes after the record"


def test_a_task_that_is_run_again_writes_its_dead_letters_again(topic: Topic) -> None:
    topic.fill(["broken"])
    dead = Topic(topic.address, f"dead-{next(_numbers)}")
    reader = batch_reader(avro_ids(topic, badRows="deadLetter", deadLetterTopic=dead.name), TYPED)
    assert isinstance(reader, BatchReader)
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
