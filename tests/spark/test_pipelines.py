"""`ottla pipeline`: each command on a real Spark, one session for all of them."""

import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fakes.consumed import position_of
from ottla.cli.exit_codes import FAILED, OK, WRONG_USAGE
from ottla.cli.main import run
from ottla.spark.progress import BatchDone
from ottla.spark.registration import register
from ottla.spark.session import session
from spark.topics import TIMEOUT_S, Topic

NEW_TOPIC = Callable[..., Topic]
MINUTE_MS = 60_000
QUERY_TIMEOUT_S = 400


class Pipelines:
    """Runs commands in a directory of their own and keeps what they print."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self.capsys = capsys
        self.said = ""

    def run(self, words: str) -> int:
        status = run(["pipeline", *shlex.split(words), "--broker", self.address])
        self.printed, self.said = self.capsys.readouterr()
        return status

    def succeed(self, words: str) -> str:
        """The output of a command, which must succeed."""
        assert self.run(words) == OK, self.said
        return self.printed

    def batches(self, words: str) -> list[dict[str, object]]:
        """The reports of a stream that reads the existing records."""
        printed = self.succeed(f"{words} --once --json")
        return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def pipelines(
    spark: SparkSession,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pipelines:
    register(spark)
    monkeypatch.chdir(tmp_path)
    return Pipelines(address, capsys)


def records(topic: Topic) -> list[tuple[str | None, str | None, dict[str, str]]]:
    """Key, value and headers of all that counts in a topic of one partition, up to its end."""
    only = TopicPartition(topic.name, 0, 0)
    uncommitted = IsolationLevel.READ_UNCOMMITTED
    ends = topic.admin.list_offsets({only: OffsetSpec.latest()}, isolation_level=uncommitted)
    end = next(iter(ends.values())).result(TIMEOUT_S).offset
    consumer = Consumer(
        {
            "bootstrap.servers": topic.address,
            "group.id": f"test-{topic.name}",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([only])
    found = []
    at = 0
    while at < end:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{topic.name} was not read beyond {at} in {TIMEOUT_S} s"
        _, _, at = position_of(message)
        if message.error() is None:
            at += 1
            found.append((text_of(message.key()), text_of(message.value()), headers_of(message)))
    consumer.close()
    return found


def text_of(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def headers_of(message: Message) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in dict(message.headers() or []).items():
        assert isinstance(value, bytes)
        found[name] = value.decode()
    return found


def values(topic: Topic) -> list[str | None]:
    return [value for _, value, _ in records(topic)]


def test_a_topic_is_archived_and_replayed_from_either_format(
    pipelines: Pipelines, new_topic: NEW_TOPIC
) -> None:
    topic, again = new_topic(2), new_topic()
    topic.fill(["a", "b"], key="k", headers={"h": b"1"})
    topic.fill(["c"], partition=1)
    command = f"archive {topic.name} lake --format delta --partition-by date"
    (first,) = pipelines.batches(command)
    assert (first["query"], first["batch_id"]) == (f"archive-{topic.name}", 0)
    assert (first["rows"], first["lag"]) == (3, 0)
    topic.fill(["d"])
    (second,) = pipelines.batches(command)
    assert (second["batch_id"], second["rows"]) == (1, 1)
    kept = DeltaTable("lake").to_pyarrow_table()
    assert sorted(kept.column("value").to_pylist()) == [b"a", b"b", b"c", b"d"]
    assert set(map(str, kept.column("date").to_pylist())) == {"1970-01-01"}

    pipelines.batches(f"archive {topic.name} files --partition-by date --name files")
    assert list(Path("files").glob("date=1970-01-01/*.parquet"))

    pipelines.succeed(f"replay ./lake {again.name} --from 1970-01-01T00:00:01.001Z")
    ((key, value, headers),) = records(again)
    assert (key, value) == ("k", "b")
    assert headers == {
        "h": "1",
        "ottla.original-topic": topic.name,
        "ottla.original-partition": "0",
        "ottla.original-offset": "1",
        "ottla.original-timestamp": "1001",
    }
    pipelines.succeed(f"replay files {again.name} --to 1970-01-01T00:00:01.001Z")
    assert Counter(values(again)[1:]) == Counter(["a", "c", "d"])


def test_a_topic_is_replayed_at_a_rate(pipelines: Pipelines, new_topic: NEW_TOPIC) -> None:
    topic, again = new_topic(), new_topic()
    topic.fill(range(30))
    words = f"replay {topic.name} {again.name} --from 1970-01-01T00:00:01.020Z --rate 100"
    pipelines.succeed(f"{words} --dry-run")
    assert values(again) == []
    pipelines.succeed(words)
    assert values(again) == [str(number) for number in range(20, 30)]


def test_what_comes_again_is_left_out(pipelines: Pipelines, new_topic: NEW_TOPIC) -> None:
    topic, out = new_topic(), new_topic()
    topic.fill(['{"id": 1, "n": 1}', '{"id": 2}', '{"id": 1, "n": 2}'], key="k")
    words = f"dedupe {topic.name} {out.name} --key \"get_json_object(value, '$.id')\""
    pipelines.batches(words)
    topic.fill(['{"id": 2, "n": 3}', '{"id": 3}'])
    pipelines.batches(words)
    found = records(out)
    ids = [json.loads(value or "")["id"] for _, value, _ in found]
    assert sorted(ids) == [1, 2, 3]
    assert ("k", '{"id": 1, "n": 1}', {}) in found


def test_figures_of_windows_are_written_when_these_are_over(
    pipelines: Pipelines, new_topic: NEW_TOPIC
) -> None:
    topic, out = new_topic(), new_topic()
    for minute, shop, amount in [(0, "a", 1), (0, "a", 2), (0, "b", 4), (9, "a", 8)]:
        topic.put(f'{{"shop": "{shop}", "amount": {amount}}}', time_ms=minute * MINUTE_MS + 1)
    pipelines.batches(
        f"aggregate {topic.name} {out.name} --window 1m --watermark 2m --by value.shop"
        " --figure 'sum(value.amount) AS total' --schema 'shop STRING, amount BIGINT'"
    )
    rows = [json.loads(value or "") for value in values(out)]
    assert sorted((row["shop"], row["total"]) for row in rows) == [("a", 3), ("b", 4)]
    assert rows[0]["window_start"] == "1970-01-01T00:00:00.000Z"


def test_a_query_of_ones_own_is_written_as_it_changes(
    pipelines: Pipelines, new_topic: NEW_TOPIC
) -> None:
    topic, out = new_topic(), new_topic()
    topic.fill(range(3), key="a")
    words = f"aggregate {topic.name} {out.name} --mode update --sql"
    query = "SELECT key, count(*) AS count FROM records GROUP BY key"
    pipelines.batches(f"{words} '{query}'")
    topic.fill(range(2), key="a")
    pipelines.batches(f"{words} '{query}'")
    assert records(out) == [("a", '{"count":3}', {}), ("a", '{"count":5}', {})]

    assert pipelines.run(f"{words} '{query} HAVING count(*) > 1'") == WRONG_USAGE
    assert "belongs to another pipeline: query was SELECT" in pipelines.said
    assert "--name" in pipelines.said


def test_records_get_what_a_file_knows(pipelines: Pipelines, new_topic: NEW_TOPIC) -> None:
    topic, out = new_topic(), new_topic()
    pq.write_table(pa.table({"id": [1], "name": ["Ottla"]}), "users.parquet")
    topic.fill(['{"id": 1, "n": 7}', '{"id": 2, "n": 8}', "broken"])
    words = f"enrich {topic.name} {out.name} --join users.parquet --schema 'id BIGINT, n INT'"
    pipelines.batches(f"{words} --on id")
    assert values(out) == ['{"id":1,"n":7,"name":"Ottla"}', '{"id":2,"n":8}', "broken"]
    assert pipelines.run(f"{words} --on n --name other") == WRONG_USAGE
    assert "the file of --join has no such column, only id, name" in pipelines.said


def test_a_topic_is_asked_in_sql(pipelines: Pipelines, topic: Topic) -> None:
    topic.fill(['{"n": 1}', '{"n": 2}'], key="k")
    query = '"SELECT key, sum(value.n) AS sum, max(offset) AS last FROM records GROUP BY key"'
    pipelines.succeed(f"sql {topic.name} {query} --schema 'n INT'")
    assert pipelines.printed == "key  sum  last\nk    3    1\n"
    pipelines.succeed(f"sql {topic.name} {query} --schema 'n INT' --json")
    assert pipelines.printed == '{"key":"k","sum":3,"last":1}\n'
    pipelines.succeed(f"sql {topic.name} {query} --schema 'n INT' --dry-run --json")
    assert json.loads(pipelines.printed)["schema"] == "struct<key:string,sum:bigint,last:bigint>"
    assert pipelines.run(f"sql {topic.name} 'SELECT nothing FROM records'") == WRONG_USAGE
    assert "UNRESOLVED_COLUMN" in pipelines.said
    assert pipelines.said.count("\n") == 2  # that Spark starts, and what is wrong


def test_a_program_of_ones_own_is_run(pipelines: Pipelines, topic: Topic) -> None:
    topic.fill(range(3))
    numbers = Path("numbers").absolute()
    Path("numbers.py").write_text(
        "def pipeline(spark):\n"
        "    rows = spark.readStream.format('ottla').option('startingOffsets', 'earliest')\n"
        f"    rows = rows.option('kafka.bootstrap.servers', '{topic.address}')\n"
        f"    rows = rows.option('subscribe', '{topic.name}').load()\n"
        f"    return rows.writeStream.format('parquet').option('path', '{numbers}')\n"
    )
    (batch,) = pipelines.batches("run numbers.py")
    assert batch["rows"] == 3
    assert sum(pq.read_metadata(file).num_rows for file in numbers.glob("*.parquet")) == 3
    Path("wrong.py").write_text("def pipeline(spark):\n    return spark.range(3)\n")
    assert pipelines.run("run wrong.py --once") == WRONG_USAGE
    assert "returned a DataFrame, not a writer" in pipelines.said


def test_a_dry_run_tells_all_and_does_nothing(pipelines: Pipelines, topic: Topic) -> None:
    topic.fill(["a"])
    words = f"archive {topic.name} lake --partition-by date --dry-run"
    pipelines.succeed(f"{words} --json")
    plan = json.loads(pipelines.printed)
    assert plan["source"] == f"topic {topic.name}"
    assert plan["sink"] == f"parquet {Path('lake').absolute()}"
    assert plan["checkpoint"] == f"{Path('checkpoints').absolute()}/archive-{topic.name} (new)"
    assert plan["schema"].startswith("struct<key:binary,value:binary,")
    pipelines.succeed(words)
    assert f"source:      topic {topic.name}\n" in pipelines.printed
    assert list(Path().iterdir()) == []


def test_a_failing_stream_says_why_in_one_line(pipelines: Pipelines, topic: Topic) -> None:
    topic.fill(range(5))
    pipelines.batches(f"archive {topic.name} lake")
    topic.fill(range(5))
    topic.cut(8)
    assert pipelines.run(f"archive {topic.name} lake --once") == FAILED
    assert "offsets 5 to 7 are missing" in pipelines.said
    assert "Traceback" not in pipelines.said


def test_a_session_tells_a_program_of_every_batch(spark: SparkSession, topic: Topic) -> None:
    topic.fill(range(5))
    told = Queue[BatchDone]()
    same = session(master="local[2]", on_batch=told.put)
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    rows = same.readStream.format("ottla").options(**options).load()
    query = rows.writeStream.format("noop").queryName("told").trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    found = [told.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert [(one.query, one.rows, one.lag) for one in found] == [("told", 3, 2), ("told", 2, 0)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("archive no-such-topic lake --once", "no-such-topic"),
        ("archive 'a b' lake", "a topic name consists of"),
        ("archive t lake --once --every 5s", "--once and --every exclude each other"),
        ("archive t lake --every soon", "not a duration"),
        ("archive t lake --metrics here", "--metrics"),
        ("replay ./nowhere t", "no such directory"),
        ("replay t u --from 7", "write a time"),
        ("enrich t u --join gone.parquet --on id --schema 'id INT'", "no such file"),
        ("aggregate t u", "give --window with --by and --figure, or --sql alone"),
        ("run gone.py", "no such file"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_runs(
    pipelines: Pipelines, words: str, problem: str
) -> None:
    assert pipelines.run(words) in (FAILED, WRONG_USAGE)
    assert problem in pipelines.said
    assert pipelines.said.count("ottla: ") == 1
