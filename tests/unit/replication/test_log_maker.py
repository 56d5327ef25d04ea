"""New logs: prepared by the worker, adopted by the loop, with the reserve's room if need be."""

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any

import pytest

from fakes.log_dirs import ORDERS, ROOT, TOPIC_ID
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.clock import SystemClock
from ottla.config import TopicConfig
from ottla.errors import StorageFailed
from ottla.model import TopicPartition
from ottla.replication.cutting import Cutting
from ottla.replication.log_maker import LogMaker
from ottla.storage.log import Log
from ottla.storage.log_dir import MANY, LogDir

MISSING = [(TopicPartition("many", index), TOPIC_ID) for index in range(MANY)]


class Maker:
    """A maker, and the worker that works for it."""

    def __init__(self) -> None:
        self.files, self.worker = MemoryFiles(), LaterWorker()
        self.log_dir = LogDir(self.files, ROOT)
        self.log_dir.open_logs(lambda tp: TopicConfig(), SystemClock().now_ms())
        self.cutting = Cutting(self.log_dir, self.worker)
        self.maker = LogMaker(self.log_dir, self.worker, SystemClock(), self.cutting)
        self.step_count = 0

    def make(self, tp: TopicPartition = ORDERS) -> Log:
        log = self.run(self.maker.make(tp, TOPIC_ID, TopicConfig()))
        assert isinstance(log, Log)
        return log

    def run(self, making: Coroutine[Any, Any, object]) -> object:
        async def scenario() -> object:
            task = asyncio.create_task(making)
            while not task.done():
                await asyncio.sleep(0)
                self.step_count += len(self.worker.steps)
                self.worker.work()
            return await task

        return asyncio.run(scenario())


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_a_log_that_was_made_survives_a_power_cut(maker: Maker) -> None:
    log = maker.make()
    assert maker.log_dir.logs == {ORDERS: log}
    assert maker.step_count == 1
    again = LogDir(maker.files.kill(), ROOT)
    assert list(again.open_logs(lambda tp: TopicConfig(), SystemClock().now_ms())) == [ORDERS]


def test_many_logs_are_prepared_with_one_step_of_the_worker(maker: Maker) -> None:
    maker.run(maker.maker.prepare(MISSING))
    assert (maker.step_count, maker.files.counts["sync_all"]) == (1, 1)
    for tp, _ in MISSING:
        maker.make(tp)
    assert maker.step_count == 1
    assert maker.log_dir.logs.keys() == {tp for tp, _ in MISSING}


def test_what_was_prepared_and_forgotten_is_prepared_again(maker: Maker) -> None:
    maker.run(maker.maker.prepare(MISSING))
    maker.maker.forget_prepared()
    maker.make(MISSING[0][0])
    assert maker.step_count == 2


def test_few_logs_are_not_prepared(maker: Maker) -> None:
    maker.run(maker.maker.prepare(MISSING[1:]))
    assert maker.step_count == 0


@pytest.mark.parametrize(("number", "is_offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_disk_that_fails_while_many_are_prepared_is_offline_and_a_full_one_is_not(
    maker: Maker, number: int, is_offline: bool
) -> None:
    maker.files.fail_next("sync_all", number)
    maker.run(maker.maker.prepare(MISSING))
    assert (maker.log_dir.offline_reason is not None) is is_offline


def test_a_full_disk_has_the_room_of_the_reserve(maker: Maker) -> None:
    maker.files.fail_next("create", errno.ENOSPC, suffix=".log")
    assert maker.make() is maker.log_dir.logs[ORDERS]
    assert not maker.files.has_faults


@pytest.mark.parametrize(("number", "is_offline"), [(errno.EMFILE, False), (errno.EIO, True)])
def test_a_log_that_cannot_be_made_is_refused(maker: Maker, number: int, is_offline: bool) -> None:
    maker.files.fail_next("create", number, suffix=".log")
    with pytest.raises(StorageFailed):
        maker.make()
    assert not maker.log_dir.logs
    assert (maker.log_dir.offline_reason is not None) is is_offline
