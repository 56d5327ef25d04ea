"""Work for another thread: done once, or never, and back on the owner's thread."""

import queue
import threading
from collections.abc import Callable
from functools import partial

import pytest

from ottla.storage.disk_worker import Errand, InlineWorker, ThreadWorker

TIMEOUT_S = 20


def test_an_errand_is_done_once() -> None:
    done: list[int] = []
    errand = Errand(lambda: done.append(1))
    errand.run()
    errand.run()
    assert done == [1]


def test_an_errand_that_was_given_up_is_never_done() -> None:
    done: list[int] = []
    errand = Errand(lambda: done.append(1))
    errand.give_up()
    errand.run()
    assert done == []


def test_a_second_caller_waits_for_the_first() -> None:
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        order.append("work")

    def run_second() -> None:
        errand.run()
        order.append("second")

    errand = Errand(work)
    first = threading.Thread(target=errand.run)
    first.start()
    assert begun.wait(TIMEOUT_S)
    second = threading.Thread(target=run_second)
    second.start()
    may_end.set()
    for thread in (first, second):
        thread.join(TIMEOUT_S)
    assert order == ["work", "second"]


def test_an_errand_that_failed_can_be_run_again() -> None:
    outcomes = [OSError("broken"), None]

    def work() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    errand = Errand(work)
    with pytest.raises(OSError, match="broken"):
        errand.run()
    errand.run()
    assert outcomes == []


def test_steps_run_in_order_on_another_thread_and_end_on_the_owners() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    worker = ThreadWorker("worker", post=posted.put, pause=lambda: None)
    threads: set[int] = set()
    outcomes: list[object] = []

    def step(number: int, _: object) -> int:
        threads.add(threading.get_ident())
        if number == 1:
            raise OSError("broken")
        return number

    for number in range(3):
        worker.run(partial(step, number), outcomes.append)
    callbacks = [posted.get(timeout=TIMEOUT_S) for _ in range(3)]
    assert outcomes == []
    for callback in callbacks:
        callback()
    worker.close()
    assert (outcomes[0], outcomes[2]) == (0, 2)
    assert isinstance(outcomes[1], OSError)
    assert threading.get_ident() not in threads


def test_a_step_that_pauses_is_given_up_when_the_worker_closes() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    paused = threading.Event()
    worker = ThreadWorker("worker", post=posted.put, pause=paused.set)

    def step(pause: Callable[[], None]) -> None:
        while True:
            pause()

    worker.run(step, lambda outcome: None)
    assert paused.wait(TIMEOUT_S)
    assert worker.abandon(TIMEOUT_S)
    assert posted.empty()


def test_an_inline_worker_has_the_outcome_at_once() -> None:
    outcomes: list[object] = []
    InlineWorker().run(lambda _: 7, outcomes.append)
    assert outcomes == [7]
