"""An outage of the store is said once, then each minute, and once when it is over."""

import logging
from collections.abc import Callable

import pytest

from ottla.broker.store_outage import StoreOutage
from ottla.cluster.store import LeaseLost, StoreUnavailable

AWAY = "coordination store not reachable"
BACK = "coordination store reachable again"


class Clock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


def ended(problem: BaseException) -> None:
    raise AssertionError(f"the broker would end: {problem}")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "ottla.broker")

    def said() -> list[str]:
        found = [record.message for record in caplog.records]
        caplog.clear()
        return found

    return said


def test_an_outage_is_said_at_its_beginning_each_minute_and_at_its_end(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    outage = StoreOutage(clock.monotonic_s, ended)
    outage.note_up()
    assert lines() == []
    for _ in range(130):
        outage.note_lost(StoreUnavailable("refused"))
        outage.note_lost(StoreUnavailable("refused"))
        clock.now_s += 1.0
    assert [vars(record)["failures"] for record in caplog.records] == [1, 120, 120]
    assert lines() == [AWAY] * 3
    clock.now_s += 2.0
    outage.note_up()
    outage.note_up()
    assert vars(caplog.records[0])["away_ms"] == 132_000
    assert lines() == [BACK]
    outage.note_lost(StoreUnavailable("refused"))
    assert lines() == [AWAY], "the next outage is another one"


def test_a_store_that_fails_every_second_call_is_away(lines: Callable[[], list[str]]) -> None:
    clock = Clock()
    outage = StoreOutage(clock.monotonic_s, ended)
    for _ in range(50):
        outage.note_lost(StoreUnavailable("the watch broke off"))
        clock.now_s += 0.5
        outage.note_up()
        clock.now_s += 0.5
    assert lines() == [AWAY]


def test_a_lost_registration_is_always_said_and_a_defect_ends_the_broker(
    lines: Callable[[], list[str]],
) -> None:
    ends: list[BaseException] = []
    outage = StoreOutage(Clock().monotonic_s, ends.append)
    outage.note_lost(LeaseLost("expired"))
    outage.note_lost(LeaseLost("expired"))
    assert lines() == ["registration lost"] * 2
    defect = RuntimeError("a defect")
    outage.note_lost(defect)
    assert ends == [defect]
