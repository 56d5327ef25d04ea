"""`ottla produce` and `ottla consume` against a real broker."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.processes import COMMAND, PATIENCE_S, Ottla, RunningBroker, wait_until
from ottla.client.partitioner import partition_of_key


def test_lines_come_out_as_they_went_in(ottla: Ottla) -> None:
    written = ottla("produce", "plain", stdin="one\n\nthree ünï\n")
    assert (written.returncode, written.stderr) == (0, "3 records written to plain\n")
    assert ottla("consume", "plain").stdout == "one\n\nthree ünï\n"


def test_a_topic_of_many_partitions_loses_nothing(ottla: Ottla) -> None:
    ottla("topic", "create", "many", "--partitions", "4")
    lines = [f"key{n % 97}:value {n}" for n in range(5000)]
    written = ottla(
        *("produce", "many", "--key-separator", ":", "--compression", "zstd", "--json"),
        stdin="\n".join(lines),
    )
    summary = json.loads(written.stdout)
    assert summary["written"] == 5000
    read = ottla("consume", "many", "--format", "%p %k:%v\\n").stdout.splitlines()
    assert sorted(line.partition(" ")[2] for line in read) == sorted(lines)
    for line in read:
        partition, _, rest = line.partition(" ")
        key = rest.partition(":")[0]
        assert int(partition) == partition_of_key(key.encode(), 4)
    of_one_key = [line for line in read if " key5:" in line]
    assert of_one_key == [f"{of_one_key[0][0]} key5:value {n}" for n in range(5, 5000, 97)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_back(ottla: Ottla, codec: str) -> None:
    topic = f"codec-{codec}"
    ottla("produce", topic, "--compression", codec, stdin="squeeze me\n" * 100)
    assert ottla("consume", topic).stdout == "squeeze me\n" * 100


def test_json_goes_round(ottla: Ottla) -> None:
    records: list[dict[str, object]] = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value": "1"}], "timestamp": 1000},
        {"key": None, "value": None, "timestamp": 2000},
        {"key_base64": "/w==", "value_base64": "AP8=", "timestamp": 3000},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    assert ottla("produce", "json-in", "--format", "json", stdin=lines).returncode == 0
    printed = ottla("consume", "json-in", "--json").stdout
    for offset, (line, record) in enumerate(zip(printed.splitlines(), records, strict=True)):
        place = {"topic": "json-in", "partition": 0, "offset": offset}
        assert json.loads(line) == {**place, **record}
    assert ottla("produce", "json-out", "--format", "json", stdin=printed).returncode == 0
    copied = ottla("consume", "json-out", "--json").stdout
    assert copied == printed.replace("json-in", "json-out")


def test_options_apply_to_every_record(ottla: Ottla) -> None:
    ottla("topic", "create", "options", "--partitions", "2")
    ottla(
        *("produce", "options", "--key", "k", "--header", "a=1", "--header", "b=2"),
        *("--partition", "1", "--acks", "1", "--format", "hex"),
        stdin="41\n4243\n",
    )
    shown = ottla("consume", "options", "--format", "%p/%o %h %k %v;")
    assert shown.stdout == "1/0 a=1,b=2 k A;1/1 a=1,b=2 k BC;"
    assert ottla("consume", "options", "--keys", "--headers").stdout == (
        "a=1,b=2\tk\tA\na=1,b=2\tk\tBC\n"
    )


def test_without_acks_records_arrive_too(ottla: Ottla) -> None:
    sent = ottla("produce", "no-acks", "--acks", "0", stdin="x\n" * 1000)
    assert sent.stderr == "1000 records sent to no-acks\n"
    # Nobody waited for them to be on disk, and before they are nobody reads them.
    wait_until(lambda: ottla("consume", "no-acks").stdout == "x\n" * 1000)


def test_a_file_is_read_like_a_pipe(ottla: Ottla, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("from\na file\n")
    assert ottla("produce", "filed", "--file", str(file)).returncode == 0
    assert ottla("consume", "filed").stdout == "from\na file\n"
    missing = ottla("produce", "filed", "--file", str(tmp_path / "missing"))
    assert missing.returncode == 2
    assert "cannot be read: No such file" in missing.stderr


def test_places_in_the_log(ottla: Ottla) -> None:
    lines = "".join(json.dumps({"value": str(n), "timestamp": n * 1000}) + "\n" for n in range(10))
    ottla("produce", "places", "--format", "json", stdin=lines)

    def values(*arguments: str) -> str:
        return "".join(ottla("consume", "places", *arguments).stdout.split())

    assert values("--from", "7") == "789"
    assert values("--from", "end") == ""
    assert values("--from", "beginning", "--count", "2") == "01"
    assert values("--from", "3", "--until", "5") == "34"
    assert values("--from", "1970-01-01T00:00:08Z") == "89"
    assert values("--until", "1970-01-01T00:00:02Z") == "01"
    assert values("--from", "-1h") == ""
    assert values("--from", "100") == ""
    assert values("--until", "-1h") == "0123456789"
    assert values("--from", "8", "--until", "100") == "89"


def test_only_some_partitions_are_read(ottla: Ottla) -> None:
    ottla("topic", "create", "some", "--partitions", "3")
    for index in range(3):
        ottla("produce", "some", "--partition", str(index), stdin=f"{index}\n")
    read = ottla("consume", "some", "--partition", "0", "--partition", "2")
    assert sorted(read.stdout.split()) == ["0", "2"]
    wrong = ottla("consume", "some", "--partition", "3")
    assert wrong.returncode == 2
    assert wrong.stderr == "ottla: topic some has no partition 3, only 0 to 2\n"


def test_following_sees_what_is_written_later(ottla: Ottla, broker: RunningBroker) -> None:
    ottla("produce", "followed", stdin="before\n")
    follower = subprocess.Popen(
        # Whoever runs the tests in the background has its children ignore Ctrl-C.
        ["env", "--default-signal=INT", *COMMAND, "consume", "followed", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OTTLA_BROKER": broker.address},
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "before\n"
    ottla("produce", "followed", stdin="after\n")
    assert follower.stdout.readline() == "after\n"
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, out, err) == (130, "", "")


def test_lines_are_sent_before_the_input_ends(ottla: Ottla, broker: RunningBroker) -> None:
    producer = subprocess.Popen(
        [*COMMAND, "--broker", broker.address, "produce", "live"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert producer.stdin is not None
    ottla("topic", "create", "live", "--if-not-exists")
    producer.stdin.write("now\n")
    producer.stdin.flush()
    assert ottla("consume", "live", "--follow", "--count", "1").stdout == "now\n"
    _, err = producer.communicate("later\n", timeout=PATIENCE_S)
    assert (producer.returncode, err) == (0, "2 records written to live\n")


def test_a_bad_line_is_named_and_what_came_before_is_written(ottla: Ottla) -> None:
    lines = '{"value": "good"}\n{"value": "good too"}\nnot json\n{"value": "behind"}\n'
    written = ottla("produce", "bad-line", "--format", "json", stdin=lines)
    assert written.returncode == 2
    first, second = written.stderr.splitlines()
    assert first.startswith("ottla: line 3: not JSON")
    assert second == "2 records written to bad-line"
    assert ottla("consume", "bad-line").stdout == "good\ngood too\n"


def test_a_record_that_is_too_large_is_named(ottla: Ottla) -> None:
    ottla("topic", "create", "narrow", "--config", "max.message.bytes=1000")
    lines = "small\n" * 300 + "x" * 2000 + "\nbehind\n"
    written = ottla("produce", "narrow", stdin=lines)
    assert written.returncode == 1
    assert "line 301 was not written: narrow-0: " in written.stderr
    assert "300 records written to narrow" in written.stderr
    assert ottla("consume", "narrow").stdout == "small\n" * 300


def test_a_failed_write_counts_more_than_a_bad_line_behind_it(ottla: Ottla) -> None:
    ottla("topic", "create", "narrow-json", "--config", "max.message.bytes=1000")
    lines = json.dumps({"value": "x" * 2000}) + "\nnot json\n"
    written = ottla("produce", "narrow-json", "--format", "json", stdin=lines)
    assert written.returncode == 1
    assert "line 1 was not written: narrow-json-0: " in written.stderr
    assert "line 2: not JSON" in written.stderr


def test_a_reader_that_stops_early_is_no_error_to_talk_about(
    broker: RunningBroker, ottla: Ottla
) -> None:
    ottla("produce", "pipe", stdin="line\n" * 50_000)
    reading, writing = os.pipe()
    consumer = subprocess.Popen(
        [*COMMAND, "--broker", broker.address, "consume", "pipe"],
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert os.read(reading, 4) == b"line"
    os.close(reading)
    _, err = consumer.communicate(timeout=PATIENCE_S)
    assert err == b""


def test_an_unknown_topic_is_one_line(ottla: Ottla) -> None:
    read = ottla("consume", "never-made")
    assert (read.returncode, read.stdout) == (1, "")
    assert read.stderr.startswith("ottla: topic never-made: it does not exist; `ottla topic list`")


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "plain", "--from", "yesterday"],
        ["consume", "plain", "--format", "%x"],
        ["consume", "plain", "--follow", "--until", "end"],
        ["consume", "plain", "--json", "--format", "%v"],
        ["produce", "plain", "--key", "a", "--key-separator", ":"],
        ["produce", "plain", "--header", "nonsense"],
        ["produce", "plain", "--compression", "rar"],
        ["produce", "white space"],
    ],
)
def test_nonsense_is_refused_with_status_2(ottla: Ottla, arguments: list[str]) -> None:
    refused = ottla(*arguments)
    assert refused.returncode == 2, refused
    assert refused.stderr.startswith("ottla: ")
    assert refused.stderr.count("\n") == 1
