"""`ottla consume`: positions, the newest records, and readers that leave."""

import json
import os
import subprocess

import pytest
from confluent_kafka import Producer

from cli.processes import COMMAND, PATIENCE_S, Ottla, RunningBroker, call_ottla


def start_consumer(
    broker: RunningBroker, *arguments: str, unbuffered: str = "1"
) -> tuple[subprocess.Popen[bytes], int]:
    """A consumer in a process of its own, and the end of the pipe that reads its output."""
    reading, writing = os.pipe()
    consumer = subprocess.Popen(
        [*COMMAND, "--broker", broker.address, "consume", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writing)
    return consumer, reading


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more", [[], ["--group", "leaves-early"]])
def test_following_into_head_ends_when_head_does(
    broker: RunningBroker, ottla: Ottla, unbuffered: str, more: list[str]
) -> None:
    """Its reader leaves in the middle of a write, and no further record ever comes."""
    ottla("produce", "followed-by-head", stdin="line\n" * 20_000)
    consumer, reading = start_consumer(
        broker, "followed-by-head", "--follow", *more, unbuffered=unbuffered
    )
    assert os.read(reading, 5) == b"line\n"
    os.close(reading)
    _, err = consumer.communicate(timeout=PATIENCE_S)
    assert consumer.returncode == 1
    assert [line for line in err.decode().splitlines() if not line.startswith("group ")] == []


def test_following_ends_when_its_reader_leaves_while_nothing_comes(
    broker: RunningBroker, ottla: Ottla
) -> None:
    ottla("produce", "followed-at-rest", stdin="only\n")
    consumer, reading = start_consumer(broker, "followed-at-rest", "--follow")
    assert os.read(reading, 100) == b"only\n"
    os.close(reading)
    _, err = consumer.communicate(timeout=PATIENCE_S)
    assert (consumer.returncode, err) == (1, b"")


def test_a_pipe_that_does_not_block_gets_every_byte(broker: RunningBroker, ottla: Ottla) -> None:
    lines = "".join(f"{n:06d} {'x' * 90}\n" for n in range(20_000))
    ottla("produce", "much", stdin=lines)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [*COMMAND, "--broker", broker.address, "consume", "much"],
        stdout=writing,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as consumer:
        os.close(writing)
        found = bytearray()
        while piece := os.read(reading, 10_000):
            found += piece
        os.close(reading)
        assert consumer.wait(PATIENCE_S) == 0
    assert found.decode() == lines


@pytest.fixture(scope="module")
def three_partitions(broker: RunningBroker) -> str:
    """A topic with records 0 to 8 by time, three in each of three partitions."""
    topic = "tail"
    call_ottla("topic", "create", topic, "--partitions", "3", broker=broker.address)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(9):
        producer.produce(topic, str(number), partition=number % 3, timestamp=1000 + number)
        producer.flush(PATIENCE_S)
    return topic


def test_the_tail_is_the_newest_records_of_all_partitions_by_time(
    ottla: Ottla, three_partitions: str
) -> None:
    assert ottla("consume", three_partitions, "--tail", "4").stdout.split() == ["5", "6", "7", "8"]
    everything = ottla("consume", three_partitions, "--tail", "100").stdout.split()
    assert everything == [str(number) for number in range(9)]
    one = ottla("consume", three_partitions, "--tail", "1", "--partition", "1", "--json").stdout
    assert (json.loads(one)["value"], json.loads(one)["partition"]) == ("7", 1)


def test_a_negative_offset_counts_back_in_each_partition(
    ottla: Ottla, three_partitions: str
) -> None:
    read = ottla("consume", three_partitions, "--from", "-1")
    assert (sorted(read.stdout.split()), read.stderr) == (["6", "7", "8"], "")
    read = ottla("consume", three_partitions, "--from", "-100", "--until", "-2")
    assert (sorted(read.stdout.split()), read.stderr) == (["0", "1", "2"], "")


def test_the_tail_can_be_followed(broker: RunningBroker, ottla: Ottla) -> None:
    ottla("produce", "tail-followed", stdin="old\nlast\n")
    consumer, reading = start_consumer(broker, "tail-followed", "--tail", "1", "--follow")
    assert os.read(reading, 100) == b"last\n"
    ottla("produce", "tail-followed", stdin="new\n")
    assert os.read(reading, 100) == b"new\n"
    os.close(reading)
    _, err = consumer.communicate(timeout=PATIENCE_S)
    assert err == b""


def test_the_tail_goes_back_behind_markers_and_aborted_records(
    broker: RunningBroker, ottla: Ottla
) -> None:
    """Offsets that no reader sees are not counted: after six of them, the last two are there."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "tail"})
    producer.init_transactions(PATIENCE_S)
    for value, is_committed in (("a", True), ("b", True), ("x", False), ("y", False)):
        producer.begin_transaction()
        producer.produce("tail-transactions", value)
        producer.flush(PATIENCE_S)
        if is_committed:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    committed = ("consume", "tail-transactions", "--isolation", "read_committed")
    assert ottla(*committed, "--tail", "2").stdout.split() == ["a", "b"]
    assert ottla("consume", "tail-transactions", "--tail", "2").stdout.split() == ["x", "y"]


def test_a_start_beyond_the_end_is_said(ottla: Ottla) -> None:
    ottla("produce", "short", stdin="0\n1\n")
    read = ottla("consume", "short", "--from", "100")
    assert (read.returncode, read.stdout) == (0, "")
    assert read.stderr == "short-0 ends at offset 2, before --from 100: nothing to read\n"
    assert ottla("consume", "short", "--from", "2").stderr == ""


def test_following_from_beyond_the_end_goes_on_from_the_end(
    broker: RunningBroker, ottla: Ottla
) -> None:
    ottla("produce", "short-followed", stdin="0\n1\n")
    consumer, reading = start_consumer(broker, "short-followed", "--from", "100", "--follow")
    assert consumer.stderr is not None
    note = consumer.stderr.readline()
    assert note == b"short-followed-0 ends at offset 2, before --from 100: reading from there\n"
    ottla("produce", "short-followed", stdin="next\n")
    assert os.read(reading, 100) == b"next\n"
    os.close(reading)
    consumer.communicate(timeout=PATIENCE_S)
