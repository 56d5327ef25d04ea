"""What ends a broker: callbacks, tasks and threads that raise what nobody provided for."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable

import pytest

from fakes.loopback import run, turns
from ottla.broker.defects import Defects, is_defect, summary
from ottla.cluster.store import LeaseLost, StoreUnavailable
from ottla.errors import NotLeader, StorageFailed, UsageRefused

Scenario = Callable[[Defects], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def bounded() -> None:
        defects = Defects(asyncio.get_running_loop())
        await scenario(defects)
        defects.close()

    run(bounded())


def raise_(problem: BaseException) -> None:
    raise problem


async def fail(problem: BaseException) -> None:
    raise problem


def test_only_what_nobody_provides_for_is_a_defect() -> None:
    expected = (OSError(), NotLeader(""), LeaseLost(), StoreUnavailable(""), UsageRefused())
    assert not any(is_defect(problem) for problem in expected)
    assert not is_defect(asyncio.CancelledError())
    assert all(is_defect(problem) for problem in (AssertionError(), TypeError(), KeyError()))


@pytest.mark.parametrize("problem", [AssertionError("x"), OSError("x"), StorageFailed("x")])
@pytest.mark.parametrize("way", ["soon", "later", "thread"])
def test_a_callback_that_raises_ends_the_broker_whatever_it_raises(
    problem: Exception, way: str
) -> None:
    async def scenario(defects: Defects) -> None:
        loop = asyncio.get_running_loop()
        match way:
            case "soon":
                loop.call_soon(raise_, problem)
            case "later":
                loop.call_later(0.001, raise_, problem)
            case _:
                loop.call_soon_threadsafe(raise_, problem)
        await defects.wait()
        assert defects.first is problem

    play(scenario)


def test_a_watched_task_ends_the_broker_with_what_is_in_its_group() -> None:
    async def scenario(defects: Defects) -> None:
        problem = KeyError("inside")
        group = BaseExceptionGroup("tasks", [BaseExceptionGroup("more", [problem])])
        defects.watch(asyncio.ensure_future(fail(group)))
        await defects.wait()
        assert defects.first is problem

    play(scenario)


def test_a_watched_task_that_is_cancelled_or_returns_ends_nothing() -> None:
    async def scenario(defects: Defects) -> None:
        cancelled = asyncio.ensure_future(asyncio.sleep(60))
        defects.watch(cancelled)
        defects.watch(asyncio.ensure_future(asyncio.sleep(0)))
        await turns(3)
        cancelled.cancel()
        await turns(3)
        assert defects.first is None

    play(scenario)


@pytest.mark.parametrize("problem", [NotLeader("gone"), TypeError("ours")])
def test_an_exception_that_nobody_awaited_counts_only_if_it_is_ours(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waited for an answer may have gone, and then nobody asks how it ended."""

    async def scenario(defects: Defects) -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(problem)
        del future
        gc.collect()
        await turns(1)
        assert defects.first is (problem if isinstance(problem, TypeError) else None)

    play(scenario)
    (said,) = caplog.records
    assert said.levelno == (logging.CRITICAL if isinstance(problem, TypeError) else logging.ERROR)


def test_the_first_one_counts_and_serving_stops_before_anything_else_runs() -> None:
    async def scenario(defects: Defects) -> None:
        stopped: list[bool] = []
        defects.on_first = lambda: stopped.append(True)
        first = TypeError("first")
        defects.end(first)
        assert stopped == [True]
        defects.end(KeyError("second"))
        defects.end(first)
        assert (defects.first, stopped) == (first, [True])

    play(scenario)


def test_what_fails_while_letting_go_keeps_nobody_from_ending() -> None:
    async def scenario(defects: Defects) -> None:
        defects.on_first = lambda: raise_(KeyError("also broken"))
        problem = TypeError()
        defects.end(problem)
        defects.attempt(lambda: raise_(ValueError()))
        await defects.attempt_within(10, fail(ValueError()))
        await defects.attempt_within(0.001, asyncio.sleep(60))
        assert defects.first is problem

    play(scenario)


def test_work_goes_on_unless_there_is_a_defect() -> None:
    async def scenario(defects: Defects) -> None:
        assert await defects.unless_ended(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(UsageRefused):
            await defects.unless_ended(fail(UsageRefused("not yours")))
        assert defects.first is None
        problem = TypeError("inside")
        with pytest.raises(TypeError, match="inside"):
            await defects.unless_ended(fail(problem))
        assert defects.first is problem

    play(scenario)


def test_a_defect_elsewhere_stops_work_and_is_raised_in_its_place() -> None:
    async def scenario(defects: Defects) -> None:
        cleaned: list[bool] = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)

        asyncio.get_running_loop().call_later(0.001, raise_, TypeError("elsewhere"))
        with pytest.raises(TypeError, match="elsewhere"):
            await defects.unless_ended(work())
        assert cleaned == [True]

    play(scenario)


def test_work_that_is_told_to_stop_is_not_left_behind() -> None:
    async def scenario(defects: Defects) -> None:
        inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await inner

        outer = asyncio.ensure_future(defects.unless_ended(work()))
        await turns(3)
        outer.cancel()
        await asyncio.wait([outer])
        assert outer.cancelled()
        assert inner.cancelled()

    play(scenario)


def test_two_brokers_on_one_loop_are_both_ended_and_the_handler_is_given_back() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        first, second = Defects(loop), Defects(loop)
        loop.call_soon(raise_, TypeError("whose?"))
        await first.wait()
        assert second.first is first.first
        second.close()
        first.close()
        assert loop.get_exception_handler() is None

    run(scenario())


def test_a_summary_is_one_line_with_kind_text_and_place() -> None:
    with pytest.raises(ValueError, match="two") as raised:
        raise_(ValueError("two\nlines"))
    said = summary(raised.value)
    assert (said["exception"], said["text"]) == ("ValueError", "two lines")
    assert said["place"].startswith(f"{__file__}:")
    assert summary(AssertionError()) == {
        "exception": "AssertionError",
        "text": "none",
        "place": "unknown",
    }
