"""Turns of the loop: responses leave together, large requests one at a time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from ottla.broker.fairness import Turns


class FakeConnection:
    """Notes its turns under its name; what it does in them is the test's."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name = name
        self.turns = turns
        self.on_flush: Callable[[], None] = _do_nothing
        self.on_large: Callable[[], None] = _do_nothing

    def flush_responses(self) -> None:
        self.turns.append(f"flush {self.name}")
        self.on_flush()

    def take_large(self) -> None:
        self.turns.append(f"large {self.name}")
        self.on_large()


def _do_nothing() -> None:
    return


def run(scenario: Callable[[Turns, list[str]], None], turn_count: int = 20) -> list[str]:
    """What happens in so many turns of the loop, which are noted by their number."""
    events: list[str] = []

    async def main() -> None:
        scenario(Turns(asyncio.get_running_loop()), events)
        for number in range(turn_count):
            events.append(f"turn {number}")
            await asyncio.sleep(0)

    asyncio.run(main())
    return events


def events_only(events: list[str]) -> list[str]:
    return [event for event in events if not event.startswith("turn")]


def test_responses_of_all_connections_leave_in_one_turn_once_each() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        a, b = FakeConnection("a", events), FakeConnection("b", events)
        for connection in (a, b, a):
            turns.flush_soon(connection)
        assert events == [], "other connections are read first"

    assert run(scenario, 2) == ["turn 0", "flush a", "flush b", "turn 1"]


def test_responses_that_follow_from_a_flush_leave_in_the_next_turn() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        a, b = FakeConnection("a", events), FakeConnection("b", events)
        a.on_flush = lambda: turns.flush_soon(b)
        turns.flush_soon(a)

    assert run(scenario, 3) == ["turn 0", "flush a", "turn 1", "flush b", "turn 2"]


def test_a_large_request_waits_for_the_responses_of_what_was_read_with_it() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        small, bulk = FakeConnection("small", events), FakeConnection("bulk", events)
        turns.take_later(bulk)
        turns.flush_soon(small)

    assert events_only(run(scenario)) == ["flush small", "large bulk"]


def test_large_requests_are_taken_one_a_turn_in_their_order() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        for name in ("a", "b", "c"):
            turns.take_later(FakeConnection(name, events))

    events = run(scenario)
    assert events_only(events) == ["large a", "large b", "large c"]
    at = [events.index(f"large {name}") for name in ("a", "b", "c")]
    for first, second in pairwise(at):
        between = [event for event in events[first:second] if event.startswith("turn")]
        assert between, "the sockets are looked at in between"


def test_a_connection_with_another_large_request_goes_behind_the_others() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        again = [None]
        a, b = FakeConnection("a", events), FakeConnection("b", events)

        def once_more() -> None:
            if again:
                again.pop()
                turns.take_later(a)

        a.on_large = once_more
        turns.take_later(a)
        turns.take_later(b)

    assert events_only(run(scenario)) == ["large a", "large b", "large a"]


def test_a_large_request_after_all_others_have_been_taken_gets_its_turn() -> None:
    def scenario(turns: Turns, events: list[str]) -> None:
        a, b = FakeConnection("a", events), FakeConnection("b", events)

        def later() -> None:
            asyncio.get_running_loop().call_soon(turns.take_later, b)

        a.on_large = later
        turns.take_later(a)

    assert events_only(run(scenario)) == ["large a", "large b"]
