"""Stream readers called as Spark calls them, against a real broker; no JVM takes part."""

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from crash.processes import BrokerProcess
from ottla.spark.plan import DataLost, OffsetsJson
from ottla.spark.small_batches import RECORDS_MAX
from ottla.spark.source import StreamReader, StreamReaderWithRows, stream_reader
from spark.direct_readers import NEW_TOPIC, _numbers, latest, planned, stream, texts
from spark.task_context import task
from spark.topics import TIMEOUT_S, Topic


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


def given(reader: StreamReader, start: OffsetsJson, end: OffsetsJson) -> list[str] | None:
    """The values that Spark takes with the plan of a batch; None if its tasks have to read it."""
    assert issubclass(StreamReaderWithRows, _SimpleStreamReaderWrapper), "Spark asks no other"
    partitions = reader.partitions(start, end)
    if not isinstance(reader, StreamReaderWithRows):
        return None
    assert len(partitions) == 1, "Spark takes rows for one task only"
    rows = [row for batch in reader.getCache(start, end) for row in batch.to_pylist()]
    assert not isinstance(reader, StreamReaderWithRows)
    return [row["value"] for row in rows]


def test_a_small_batch_is_read_by_its_planner_after_one_that_tasks_have_read(topic: Topic) -> None:
    topic.fill(range(3))
    reader = stream(topic)
    start = reader.initialOffset()
    first = latest(reader, start)
    assert given(reader, start, first) is None, "tasks compare the topic's id with the query's"
    assert given(reader, start, first) is None, "they have not ended"
    topic.fill(range(3, 5))
    second = latest(reader, first)
    assert given(reader, first, second) == ["3", "4"]
    topic.fill(range(5, 5 + RECORDS_MAX))
    third = latest(reader, second)
    assert given(reader, second, third) == texts(range(5, 5 + RECORDS_MAX))
    topic.fill(range(RECORDS_MAX + 1))
    assert given(reader, third, latest(reader, third)) is None, "these are too many"


def test_a_small_batch_of_a_topic_created_again_is_left_to_tasks(topic: Topic) -> None:
    topic.fill(range(3))
    reader = stream(topic, onDataLoss="skip")
    start = reader.initialOffset()
    first = latest(reader, start)
    assert given(reader, start, first) is None
    assert latest(reader, first) == first
    topic.delete()
    topic.create()
    topic.fill(range(5))
    assert given(reader, first, latest(reader, first)) is None


def test_small_batches_with_dead_letters_are_left_to_tasks(topic: Topic) -> None:
    schema = StructType([StructField("value", StructType([StructField("id", LongType())]))])
    avro = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
    bad = {"badRows": "deadLetter", "deadLetterTopic": f"{topic.name}-dead"}
    options = topic.options(startingOffsets="earliest", valueFormat="avro", valueSchema=avro, **bad)
    reader = stream_reader(options, schema)
    assert isinstance(reader, StreamReader)
    topic.fill(["\x02"])
    start = reader.initialOffset()
    first = latest(reader, start)
    assert given(reader, start, first) is None
    topic.fill(["\x04"])
    assert given(reader, first, latest(reader, first)) is None


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


def test_a_first_batch_with_unknown_start_offsets_is_not_skipped(topic: Topic) -> None:
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


def test_new_records_end_the_wait(topic: Topic) -> None:
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
        DataLost, match=f"{topic.name}-0: offsets 0 to 3 are missing, removed before they were read"
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


def test_a_topic_that_is_not_subscribed_to_any_more_is_named(new_topic: NEW_TOPIC) -> None:
    topic, former = new_topic(), new_topic()
    start = {topic.name: {"0": 0}, former.name: {"0": 3}}
    with pytest.raises(DataLost, match=f"{former.name}-0: .* 3 and is not subscribed to now"):
        latest(stream(topic), start)


def test_a_topic_created_again_is_noticed(topic: Topic) -> None:
    topic.fill(range(10))
    reader, again = stream(topic), stream(topic, onDataLoss="earliest")
    start = latest(reader, reader.initialOffset())
    topic.delete()
    with pytest.raises(DataLost, match="does not exist now"):
        latest(reader, start)
    topic.create()
    topic.fill(["new"])
    with pytest.raises(DataLost, match="ends at 1 now, as if created again"):
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

    def run(self, reader: StreamReader, start: OffsetsJson, end: OffsetsJson) -> list[int]:
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


def test_a_topic_created_again_behind_a_resting_query_is_a_loss(new_topic: NEW_TOPIC) -> None:
    query = Rested(new_topic(2))
    for _ in range(2):  # it stays one, however often the query is started
        with pytest.raises(
            DataLost, match=f"topic {query.topic.name} was deleted and created again"
        ):
            query.go_on()


def test_a_topic_created_again_is_read_from_its_beginning_where_that_is_wanted(
    new_topic: NEW_TOPIC,
) -> None:
    query = Rested(new_topic(2))
    for _ in range(2):  # the same when the batch is repeated
        assert query.go_on(onDataLoss="earliest") == list(range(1000, 1150))
    query.batch, now = 2, {query.topic.name: {"0": 90, "1": 60}}
    query.topic.fill(range(1150, 1155))
    reader = stream(query.topic)
    assert query.run(reader, now, latest(reader, now)) == list(range(1150, 1155))


def test_a_topic_created_again_is_read_on_where_the_query_was_with_skip(
    new_topic: NEW_TOPIC,
) -> None:
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
