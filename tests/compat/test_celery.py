"""Celery on Ottla: workers that are killed, retries, times, remote control.

`OTTLA_CELERY_TASKS` is the number of tasks, `OTTLA_CELERY_KILLS` that of kills of the worker,
`OTTLA_CELERY_ETAS` how many tasks have a time.
"""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from compat.adapter import PATIENCE_S, wait_until
from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import set_group
from compat.test_share_requests import offsets_of

TASKS = int(os.environ.get("OTTLA_CELERY_TASKS", "60"))
KILLS = int(os.environ.get("OTTLA_CELERY_KILLS", "1"))
ETAS = int(os.environ.get("OTTLA_CELERY_ETAS", "8"))
PROCESSES = 8 if KILLS > 1 else 2
QUEUE = "celery-tests"
LOCK_MS = 15_000


class Worker:
    """A Celery worker with its pool, in a process group of its own."""

    def __init__(self, log: Path, processes: int = PROCESSES) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "celery_tasks", "worker"),
                    *("-c", str(processes), "-l", "info"),
                ],
                cwd=Path(__file__).parent,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)


class Setting:
    """A broker, an application and the lines that its tasks have written."""

    def __init__(self, broker: ServedBroker, tasks: Any, output: Path) -> None:
        self.broker = broker
        self.tasks = tasks
        self._output = output
        self.log = output.with_name("worker.log")

    def lines(self, kind: str) -> list[list[str]]:
        text = self._output.read_text() if self._output.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [line[1:] for line in found if line[0] == kind]

    def is_finished(self) -> bool:
        with connected(self.broker.address) as raw:
            return sum(lag for _, lag in offsets_of(raw, QUEUE)) == 0


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    settings = {
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "num.partitions": "2",
    }
    broker = ServedBroker(tmp_path / "data", settings)
    broker.start()
    with connected(broker.address) as raw:
        set_group(raw, QUEUE, share_record_lock_duration_ms=str(LOCK_MS))
    monkeypatch.setenv("BROKER", broker.address)
    monkeypatch.setenv("OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("QUEUE", QUEUE)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    tasks = importlib.import_module("celery_tasks")
    yield Setting(broker, tasks, tmp_path / "output")
    tasks.app.pool.force_close_all()
    tasks.app.close()
    sys.modules.pop("celery_tasks")
    broker.stop()


@pytest.mark.nightly
def test_every_task_is_done_although_workers_are_killed(setting: Setting) -> None:
    note = setting.tasks.note
    for number in range(TASKS // 2):
        note.delay(number)
    worker = Worker(setting.log)
    try:
        for kill in range(KILLS):
            enough = TASKS // 2 * (kill + 1) // (KILLS + 1)
            wait_until(
                lambda enough=enough: len(setting.lines("note")) >= enough,  # type: ignore[misc]
                "the worker works",
            )
            worker.kill()
            worker = Worker(setting.log)
        for number in range(TASKS // 2, TASKS):
            note.delay(number)
        wait_until(
            lambda: len({line[0] for line in setting.lines("note")}) == TASKS,
            "every task is done",
        )
        wait_until(setting.is_finished, "every task is acknowledged")
    finally:
        status = worker.stop()
    assert status == 0, setting.log.read_text()


@pytest.mark.slow
def test_retries_times_and_remote_control(setting: Setting) -> None:
    """A task that fails is tried again; tasks with a time run in their order, and not before."""
    worker = Worker(setting.log, processes=1)  # several would end in any order
    step_s = min(0.3, 60 / ETAS)
    try:
        setting.tasks.fail_once.delay(1)
        now = datetime.now(UTC)
        for number in reversed(range(ETAS)):
            eta = now + timedelta(seconds=2 + ETAS * 0.02 + number * step_s)
            setting.tasks.note.apply_async((number,), eta=eta)
        setting.tasks.note.apply_async((-1,), expires=0.001)
        wait_until(lambda: len(setting.lines("note")) >= ETAS, "all times have come")
        assert [int(line[0]) for line in setting.lines("note")] == list(range(ETAS))
        tried = setting.lines("tried")
        assert [line[:2] for line in tried] == [["1", "0"], ["1", "1"]]
        assert float(tried[1][2]) - float(tried[0][2]) >= 0.5
        wait_until(setting.is_finished, "every task is acknowledged")
        answers = setting.tasks.app.control.inspect(timeout=10).ping()
        assert [answer["ok"] for answer in answers.values()] == ["pong"]
    finally:
        assert worker.stop() == 0, setting.log.read_text()
