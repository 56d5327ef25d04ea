"""Every file in examples/ is run, with the address of a broker and without."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120
INVOICES = (
    "crashed, with 0 invoices written\n"
    "crashed, with 5 invoices written\n"
    "20 orders, 20 invoices, 20 of them different\n"
)
PRINTED = {
    "produce_consume_confluent.py": "wrote 3 records\nread hello from confluent-kafka\n",
    "produce_consume_aiokafka.py": "wrote 3 records\nread hello from aiokafka\n",
    "produce_consume_kafka_python.py": "wrote 3 records\nread hello from kafka-python\n",
    "idempotent_producer.py": ("wrote 1000 records\nread 1000 records\nonce each, and in order\n"),
    "seek_by_time.py": "13:30 begins at offset 2 of 4\nread ['reading 2', 'reading 3']\n",
    "consumer_group.py": (
        "the first member read 0 to 9 and left\nthe next one went on with 10 to 19\n"
    ),
    "exactly_once_confluent.py": INVOICES,
    "exactly_once_aiokafka.py": INVOICES,
    "order_queue.py": "300 orders in the queue\n50 sold, 250 sold out\neach order once\n",
    "worker_pool.py": "6 converted\n1 tried again\n1 rejected\n",
    "admin_topics.py": (
        "orders is made\n"
        "3 partitions, retention.ms=86400000, durability=fsync\n"
        "6 partitions, retention.ms=3600000, durability=fsync\n"
        "orders is deleted\n"
    ),
}


def run(*words: str, directory: Path) -> str:
    """What a Python program prints; it must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_known_here() -> None:
    found = {file.name for file in EXAMPLES.glob("*.py")}
    assert found == {*PRINTED, "embedded_test.py", "spark_word_count.py"}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_against_a_broker_twice(
    name: str, shared_broker: str, tmp_path: Path
) -> None:
    # Twice: what the first run has left in the broker must not disturb the second.
    for _ in range(2):
        assert run(str(EXAMPLES / name), shared_broker, directory=tmp_path) == PRINTED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_brings_its_own_broker(name: str, tmp_path: Path) -> None:
    assert run(str(EXAMPLES / name), directory=tmp_path) == PRINTED[name]


def test_the_test_file_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "embedded_test.py", tmp_path)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "embedded_test.py"]
    assert "7 passed" in run(*words, directory=tmp_path)
