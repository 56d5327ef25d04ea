"""Long jobs of a queue through crashes of the broker, and of a worker.

`OTTLA_QUEUE_RESTARTS` is the number of crashes, `OTTLA_QUEUE_LOCKS` the length of a job in lock
durations, `OTTLA_QUEUE_JOBS` how many jobs are done side by side.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from compat.adapter import PATIENCE_S, wait_until
from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import set_group
from compat.test_share_requests import offsets_of
from compat.wire import create_topic

RESTARTS = int(os.environ.get("OTTLA_QUEUE_RESTARTS", "2"))
JOB_LOCKS = float(os.environ.get("OTTLA_QUEUE_LOCKS", "1.1"))
JOBS = int(os.environ.get("OTTLA_QUEUE_JOBS", "6"))
LOCK_S = 15  # the shortest that a group may have
TOPIC = "jobs"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    settings = {
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "2",
    }
    served = ServedBroker(tmp_path / "data", settings)
    served.start()
    with connected(served.address) as raw:
        create_topic(raw, TOPIC, 2)
        set_group(raw, TOPIC, share_record_lock_duration_ms=str(LOCK_S * 1000))
    yield served
    served.stop()


def is_finished(broker: ServedBroker) -> bool:
    with connected(broker.address) as raw:
        return [lag for _, lag in offsets_of(raw, TOPIC)] == [0, 0]


@pytest.mark.slow
def test_a_long_job_is_done_once_through_crashes_of_the_broker(broker: ServedBroker) -> None:
    job_s = JOB_LOCKS * LOCK_S
    begun, done, stop = Counter[bytes](), Counter[bytes](), threading.Event()
    all_begun = threading.Event()

    def handler(message: ottla.Message) -> None:
        value = message.value or b""
        begun[value] += 1
        if len(begun) == JOBS:
            all_begun.set()
        threading.Event().wait(job_s)
        done[value] += 1

    with ottla.Queue(TOPIC, servers=broker.address) as queue:
        for number in range(JOBS):
            queue.put(str(number))
        worker = threading.Thread(
            target=lambda: queue.work(handler, concurrency=JOBS + 2, stop=stop), daemon=True
        )
        worker.start()
        assert all_begun.wait(PATIENCE_S)
        begun_s = time.monotonic()
        for restart in range(RESTARTS):
            due_s = begun_s + job_s * (restart + 1) / (RESTARTS + 1)
            wait_until(lambda due_s=due_s: time.monotonic() >= due_s, "the next crash is due")  # type: ignore[misc]
            broker.end(signal.SIGKILL)
            broker.start()
        wait_until(lambda: done.total() >= JOBS and is_finished(broker), "all jobs are done")
        stop.set()
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
    assert begun == done == Counter(str(number).encode() for number in range(JOBS))


@pytest.mark.slow
def test_jobs_of_a_killed_worker_are_done_by_another_when_their_locks_end(
    broker: ServedBroker,
) -> None:
    with ottla.Queue(TOPIC, servers=broker.address) as queue:
        for number in range(3):
            queue.put(str(number))
        command = [sys.executable, str(Path(__file__).with_name("queue_process.py"))]
        worker = subprocess.Popen(
            [*command, broker.address, TOPIC, "2"], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        try:
            got = [worker.stdout.readline().split() for _ in range(2)]
        finally:
            worker.kill()
            worker.wait(PATIENCE_S)
            worker.stdout.close()
        assert [deliveries for _, _, deliveries in got] == ["1", "1"]
        seen: dict[str, int] = {}
        while len(seen) < 3:
            with queue.take(wait=PATIENCE_S) as message:
                seen[(message.value or b"").decode()] = message.deliveries
    lost = {value for _, value, _ in got}
    assert seen == {str(number): 2 if str(number) in lost else 1 for number in range(3)}
