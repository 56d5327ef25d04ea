"""Exactly-once writers called as Spark calls them, against a real broker; no JVM takes part."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    WriterCommitMessage,
)

from crash.processes import BrokerProcess
from ottla.client.errors import Refused
from ottla.client.group_offsets import commit_offsets
from ottla.client.groups import list_groups
from ottla.client.transactions import list_transactions
from ottla.model import Offset, TopicPartition
from ottla.spark.batch_commit import StreamBatchCommit, abort_all, producers_of
from ottla.spark.batch_decisions import BatchRefused, WriteDecision
from ottla.spark.blocking_client import client_for
from ottla.spark.option_reader import OptionRefused
from ottla.spark.sink import StreamWriter, batch_writer, stream_writer
from ottla.spark.write_options import parse_write_options
from ottla.spark.write_task import WrittenInTransaction
from spark.crashing_sinks import COMMIT_POINTS, commit_until
from spark.direct_writers import NEW_TOPIC, TEXT, batch_of, read, save
from spark.task_context import task
from spark.topics import TIMEOUT_S, Topic

pytestmark = pytest.mark.usefixtures("batch_task")


def sink_of(topic: Topic, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": topic.address, "topic": topic.name, **more}


def texts(*values: str) -> Iterator[pa.RecordBatch]:
    """An Arrow batch for each value."""
    return iter([batch_of([{"value": value}]) for value in values])


class Stream:
    """A query that writes to a topic, as Spark runs it; its tasks are given as lists of values."""

    def __init__(self, topic: Topic, query_id: str = "", **more: str) -> None:
        self.topic = topic
        self.query_id = query_id or f"query-{topic.name}"
        writer = stream_writer(sink_of(topic, **more), TEXT)
        assert isinstance(writer, StreamWriter)
        self.writer = writer

    def write(
        self, batch: int, *tasks: Sequence[str], attempt: int = 0
    ) -> list[WrittenInTransaction]:
        """Run the tasks of a micro-batch."""
        return [
            self.write_task(batch, number, texts(*values), attempt)
            for number, values in enumerate(tasks)
        ]

    def write_task(
        self, batch: int, number: int, rows: Iterator[pa.RecordBatch], attempt: int = 0
    ) -> WrittenInTransaction:
        with task(number, attempt=attempt, query_id=self.query_id, batch_id=batch):
            done = self.writer.write(rows)
        assert isinstance(done, WrittenInTransaction)
        return done

    def run(self, batch: int, *tasks: Sequence[str]) -> None:
        """A micro-batch that comes to its end."""
        self.writer.commit([*self.write(batch, *tasks)], batchId=batch)

    def crash(self, point: str, batch: int, *tasks: Sequence[str]) -> list[WrittenInTransaction]:
        """A micro-batch whose driver dies at this point."""
        written = self.write(batch, *tasks)
        commit_until(self.writer, [*written], batch, point)
        return written

    def time_out(self, written: Sequence[WrittenInTransaction]) -> None:
        """Abort transactions as the broker does after their timeout."""
        producers = producers_of(one.part for one in written)
        client_for(self.writer.options.brokers).call(lambda client: abort_all(client, producers))


def test_batches_are_written_one_after_the_other(topic: Topic) -> None:
    query = Stream(topic)
    query.run(0, ["a"], ["b"])
    query.run(1, ["c"])
    Stream(topic, f"another-{topic.name}").run(0, ["d"])
    assert sorted(topic.committed()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "layout", [[["a"], ["b"], ["c"]], [["c", "a", "b"]], [["b"], [], ["c", "a"]]]
)
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_batch_counts_once_wherever_its_driver_died_and_whatever_its_tasks_are_now(
    topic: Topic, point: str, layout: list[list[str]]
) -> None:
    query = Stream(topic)
    query.run(0, ["0"])
    query.crash(point, 1, ["a", "b"], ["c"])
    query.run(1, *layout)
    query.run(2, ["d"])
    assert sorted(topic.committed()) == ["0", "a", "b", "c", "d"]


@pytest.mark.parametrize("rows", [["a", "x"], ["a"], ["a", "b", "c"], []])
def test_a_batch_that_was_decided_and_has_other_rows_now_is_an_error(
    topic: Topic, rows: list[str]
) -> None:
    query = Stream(topic)
    query.crash("half ended", 0, ["a"], ["b"])
    with pytest.raises(BatchRefused, match="with other content: 2 rows"):
        query.run(0, rows)
    accepting = Stream(topic, acceptBatch="0")
    accepting.run(0, rows)
    accepting.run(1, ["d"])
    assert sorted(topic.committed()) == ["a", "b", "d"]


@pytest.mark.parametrize(("batch", "point"), [(0, "decided"), (1, "decided"), (1, "half ended")])
def test_what_was_decided_counts_at_once_when_its_repetition_is_refused(
    topic: Topic, batch: int, point: str
) -> None:
    """The user may take longer to react than transactions stay open."""
    query = Stream(topic)
    query.run(0, ["0"])
    written = query.crash(point, 1, ["a"], ["b"])
    with pytest.raises(BatchRefused, match="with other content"):
        query.run(batch, ["x"])
    query.time_out(written)
    assert sorted(topic.committed()) == ["0", "a", "b"]
    Stream(topic, acceptBatch="1").run(1, ["x"])
    query.run(2, ["c"])
    assert sorted(topic.committed()) == ["0", "a", "b", "c"]


@pytest.mark.parametrize("point", ["written", "half ended", "noted"])
def test_a_topic_may_change_but_not_under_a_batch_that_was_decided(
    new_topic: NEW_TOPIC, point: str
) -> None:
    former, topic = new_topic(), new_topic()
    before = Stream(former)
    after = Stream(topic, query_id=before.query_id)
    before.run(0, ["0"])
    before.crash(point, 1, ["a"], ["b"])
    if point == "written":
        after.run(1, ["a", "b"])
        assert former.committed() == ["0"]  # nothing is left open there
    else:
        with pytest.raises(BatchRefused, match=rf"{former.name}, and comes to another one now"):
            after.run(1, ["a", "b"])
        assert topic.committed() == []
        assert sorted(former.committed()) == ["0", "a", "b"]
        before.run(1, ["a"], ["b"])
    after.run(2, ["c"])
    assert sorted([*former.committed(), *topic.committed()]) == ["0", "a", "b", "c"]


def test_a_batch_that_was_not_decided_may_have_other_rows(topic: Topic) -> None:
    query = Stream(topic)
    query.crash("written", 0, ["a"], ["b"])
    query.run(0, ["x"], ["y"], ["z"])
    assert sorted(topic.committed()) == ["x", "y", "z"]


def test_an_older_checkpoint_repeats_what_is_the_same_and_stops_at_what_is_not(
    topic: Topic,
) -> None:
    query = Stream(topic)
    for batch in range(5):
        query.run(batch, [str(batch)])
    query.run(3, ["3"])
    with pytest.raises(BatchRefused, match="with other content"):
        query.run(4, ["4", "5"])
    for batch in range(5, 40):
        query.run(batch, [str(batch)])
    with pytest.raises(BatchRefused, match=r"up to batch\s39.*older copy"):
        query.run(3, ["3"])
    assert sorted(map(int, topic.committed())) == list(range(40))


def test_attempts_that_fail_or_lose_neither_count_nor_hold_up_readers(topic: Topic) -> None:
    class Spilled(Exception):
        pass

    def spilling() -> Iterator[pa.RecordBatch]:
        yield from texts("a", "b", "c")
        raise Spilled

    query = Stream(topic)
    with pytest.raises(Spilled):
        query.write_task(0, 0, spilling())
    loser = query.write(0, ["a"], ["b"], attempt=1)  # never heard of again
    winner = query.write(0, ["a"], ["b"], attempt=2)
    assert loser[0].part.producer != winner[0].part.producer
    query.writer.commit([*winner], batchId=0)
    assert topic.ends() != {0: 2}
    assert sorted(topic.committed()) == ["a", "b"]


def test_a_speculative_attempt_that_begins_later_does_not_disturb_the_attempt_that_counts(
    topic: Topic,
) -> None:
    query = Stream(topic)
    winner = query.write(0, ["a"], ["b"])
    query.write(0, ["a"], ["b"], attempt=1)
    query.writer.commit([*winner], batchId=0)
    assert sorted(topic.committed()) == ["a", "b"]


def test_a_job_that_failed_leaves_nothing_open(topic: Topic) -> None:
    query = Stream(topic)
    query.write(0, ["a"], ["b"], attempt=1)
    written = query.write(0, ["a"], ["b"])
    query.writer.abort([written[0], None], batchId=0)
    assert topic.committed() == []
    # Spark also aborts after a commit that failed: what that may have decided stays as it is.
    decided = query.crash("decided", 0, ["a"], ["b"])
    query.writer.abort([*decided], batchId=0)
    query.run(0, ["a", "b"])
    assert sorted(topic.committed()) == ["a", "b"]


def test_a_decision_is_not_made_about_a_transaction_that_another_producer_has_taken(
    topic: Topic,
) -> None:
    query = Stream(topic)
    written = query.write(0, ["a"], ["b"])
    query.write(0, ["x"])  # of another driver, under the same ids
    with pytest.raises(BatchRefused, match="ended before all tasks were done"):
        query.writer.commit([*written], batchId=0)
    query.run(0, ["a"], ["b"])
    assert sorted(topic.committed()) == ["a", "b"]


def test_two_drivers_never_both_write_a_batch(topic: Topic) -> None:
    query = Stream(topic)
    first = query.write(0, ["a"], ["b"], attempt=1)
    second = query.write(0, ["a", "b"])
    query.writer.commit([*second], batchId=0)
    with pytest.raises(BatchRefused, match="two queries run on one checkpoint"):
        query.writer.commit([*first], batchId=0)
    assert sorted(topic.committed()) == ["a", "b"]


def test_a_decision_that_another_driver_makes_in_between_is_noticed(topic: Topic) -> None:
    """The other driver looked for open transactions before these tasks began."""
    query = Stream(topic)
    blocking = client_for(query.writer.options.brokers)
    slow = StreamBatchCommit(blocking, 0, query.write(0, ["a"], ["b"]), None)
    action = blocking.submit(slow.choose_action()).result()
    assert isinstance(action, WriteDecision)
    written = query.write(0, ["a", "b"], attempt=1)
    quick = StreamBatchCommit(blocking, 0, written, None)
    decision = replace(action.decision, producers=producers_of(one.part for one in written))
    blocking.submit(quick.write_decision(decision)).result()
    blocking.submit(quick.commit_transactions(decision)).result()
    with pytest.raises(BatchRefused, match="two queries run on one checkpoint"):
        blocking.submit(slow.write_decision(action.decision)).result()
    assert sorted(topic.committed()) == ["a", "b"]


@pytest.mark.parametrize(
    ("rows", "more"), [(["a", "b"], {}), (["x"], {}), (["x"], {"acceptBatch": "0"})]
)
def test_a_batch_whose_transactions_timed_out_after_the_decision_is_written_again(
    topic: Topic, rows: list[str], more: dict[str, str]
) -> None:
    query = Stream(topic, **more)
    query.time_out(query.crash("decided", 0, ["a"], ["b"]))
    with pytest.raises(BatchRefused, match="Start the query again"):
        query.run(0, rows)
    query.run(0, rows)
    assert sorted(topic.committed()) == rows


def test_a_batch_of_which_a_part_timed_out_is_an_error_that_names_it(topic: Topic) -> None:
    query = Stream(topic)
    query.time_out(query.crash("half ended", 0, ["a"], ["b"]))
    for _ in range(2):
        with pytest.raises(BatchRefused, match=r"-1\.0 \(aborted\).*rows are missing"):
            query.run(0, ["a"], ["b"])
    Stream(topic, acceptBatch="0").run(0, ["a"], ["b"])
    assert topic.committed() == ["a"]


def test_a_batch_that_an_older_version_has_begun_is_an_error_that_says_what_to_do(
    topic: Topic,
) -> None:
    """The older version committed batch numbers as offsets of a group for each task."""
    query = Stream(topic)
    note = {TopicPartition(topic.name, 0): Offset(4)}
    group = f"__ottla_sink-{query.query_id}-{topic.name}-1"
    blocking = client_for(query.writer.options.brokers)
    blocking.call(lambda client: commit_offsets(client, group, note))
    with pytest.raises(BatchRefused, match="written by a version"):
        query.run(4, ["a"], ["b"])
    assert topic.committed() == []
    Stream(topic, acceptBatch="4").run(4, ["a"], ["b"])
    query.run(5, ["c"])
    assert topic.committed() == ["c"]


def test_a_batch_job_counts_as_a_whole(topic: Topic) -> None:
    job = batch_writer(sink_of(topic), TEXT, overwrite=False)
    with task(0):
        first = job.write(texts("a"))
    with task(1):
        second = job.write(texts("b"))
    assert topic.ends() != {0: 0}
    job.abort([first, None])
    assert topic.committed() == []
    with task(1, attempt=1):
        second = job.write(texts("b"))
    with task(0, attempt=1):
        first = job.write(texts("a"))
    job.commit([first, second])
    assert [row["value"] for row in read(topic)] == [b"b", b"a"]  # at once


def test_jobs_of_one_query_that_write_a_topic_at_the_same_time_end_in_an_error(
    topic: Topic,
) -> None:
    """Jobs that `foreachBatch` starts in threads; sequential ones are fine."""
    jobs = [batch_writer(sink_of(topic), TEXT, overwrite=False) for _ in range(2)]
    with task(0, query_id=topic.name, batch_id=0):
        first, second = (job.write(texts(value)) for job, value in zip(jobs, "ab", strict=True))
    with pytest.raises(BatchRefused, match="ended before all tasks were done"):
        jobs[0].commit([first])
    jobs[1].commit([second])
    assert topic.committed() == ["b"]


def test_what_foreach_batch_writes_leaves_nothing_behind_for_each_batch(topic: Topic) -> None:
    """A broker keeps groups and transactional ids for a week."""
    blocking = client_for(parse_write_options(sink_of(topic)).brokers)
    groups = blocking.call(list_groups)
    for batch in range(5):
        job = batch_writer(sink_of(topic), TEXT, overwrite=False)
        messages = list[WriterCommitMessage | None]()
        for number in range(2):
            with task(number, query_id=topic.name, batch_id=batch):
                messages.append(job.write(texts(f"{batch}-{number}")))
        job.commit(messages)
    assert blocking.call(list_groups) == groups
    ids = [one.transactional_id for one in blocking.call(list_transactions)]
    assert [one for one in ids if topic.name in one] == [
        f"{topic.name}-{topic.name}-{number}.0" for number in range(2)
    ]
    assert len(topic.committed()) == 10


def test_a_batch_job_that_took_too_long_counts_for_nothing(topic: Topic) -> None:
    job = batch_writer(sink_of(topic, transactionTimeout="1s"), TEXT, overwrite=False)
    written = job.write(texts("a"))
    assert topic.committed() == []  # which waits until the broker has aborted it
    with pytest.raises(BatchRefused, match=r"longer than transactionTimeout"):
        job.commit([written])
    assert topic.committed() == []


def test_a_task_of_no_query_is_told_what_to_do(topic: Topic) -> None:
    with pytest.raises(OptionRefused, match="set delivery=at-least-once"):
        stream_writer(sink_of(topic), TEXT).write(texts("a"))


def test_a_timeout_beyond_what_the_broker_allows_is_explained(topic: Topic) -> None:
    with pytest.raises(Refused, match=r"transaction\.max\.timeout\.ms"):
        batch_writer(sink_of(topic, transactionTimeout="10d"), TEXT, overwrite=False).write(
            texts("a")
        )


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_broker_killed_under_way_gets_every_row_once(tmp_path: Path, delivery: str) -> None:
    broker = BrokerProcess(tmp_path / "data", log_file=tmp_path / "log")
    broker.start()
    try:
        topic = Topic(broker.address, "killed")
        topic.create()
        sent = threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(20):
                if number == 5:
                    sent.set()
                yield batch_of([{"value": f"{number}-{row}"} for row in range(50)])

        writer = batch_writer(sink_of(topic, delivery=delivery), TEXT, overwrite=False)
        done = list[int]()
        writing = threading.Thread(target=lambda: done.append(save(writer, batches())))
        writing.start()
        assert sent.wait(TIMEOUT_S)
        broker.kill()
        broker.start()
        writing.join(TIMEOUT_S)
        assert done == [1000]
        expected = [f"{number}-{row}".encode() for number in range(20) for row in range(50)]
        assert [row["value"] for row in read(topic)] == expected
    finally:
        broker.end()
