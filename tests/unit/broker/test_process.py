"""The process of a broker: what cli tests do not show of it."""

import asyncio
import gc

import pytest

from ottla.broker import process
from ottla.model import Endpoint


def test_young_objects_are_collected_often_and_all_objects_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected: list[int] = []
    slept_s: list[float] = []
    clock_s = 0.0

    class FakeLoop:
        def time(self) -> float:
            return clock_s

    async def sleep(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds
        slept_s.append(seconds)
        if len(slept_s) > 40:
            raise asyncio.CancelledError

    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))
    monkeypatch.setattr(asyncio, "get_running_loop", FakeLoop)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        process._collect_garbage().send(None)
    monkeypatch.undo()
    assert set(slept_s) == {30.0}
    assert [index for index, generation in enumerate(collected) if generation == 2] == [19, 39]
    assert collected.count(1) == 38


def test_hints_name_the_address() -> None:
    text = process._hints(Endpoint("127.0.0.1", 9092))
    assert text.count("--broker 127.0.0.1:9092") == 3
    assert "bootstrap.servers=127.0.0.1:9092" in text
