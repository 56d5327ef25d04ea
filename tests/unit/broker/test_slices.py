"""Work in slices: small work is done at once, large work lets others have their turns."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fakes.loopback import run, turns
from ottla.broker.slices import (
    UNITS_MAX,
    UNITS_PER_SLICE,
    LargeRequests,
    Pace,
    finish,
    parts,
    start,
)
from ottla.errors import ProtocolViolation, ResponseTooLarge
from ottla.protocol.codec import Steps


def counted(units: int, size: int = 1) -> Steps[str]:
    for _ in range(units):
        yield size
    return "done"


async def turns_of(work: Coroutine[Any, Any, Any]) -> int:
    """How many turns of the loop it takes until the work is done."""
    task = asyncio.ensure_future(work)
    count = 0
    while not task.done():
        await turns(1)
        count += 1
    await task
    return count


def test_what_takes_one_slice_is_done_at_once_without_a_coroutine() -> None:
    assert start(counted(0)) == "done"
    assert start(counted(UNITS_PER_SLICE - 1)) == "done"


def test_what_takes_longer_goes_on_in_further_turns() -> None:
    async def scenario() -> None:
        started = start(counted(4 * UNITS_PER_SLICE))
        assert asyncio.iscoroutine(started)
        assert await turns_of(started) >= 4
        assert await finish(counted(4 * UNITS_PER_SLICE)) == "done"
        assert await turns_of(finish(counted(4, UNITS_PER_SLICE))) >= 4

    run(scenario())


def test_a_step_that_fails_fails_the_whole() -> None:
    def failing(units: int) -> Steps[None]:
        yield from counted(units)
        raise ValueError("bad item")

    async def scenario() -> None:
        for units in (0, 3 * UNITS_PER_SLICE):
            with pytest.raises(ValueError, match="bad item"):
                await finish(failing(units))

    run(scenario())


def test_work_without_an_end_is_given_up() -> None:
    async def scenario() -> None:
        with pytest.raises(ResponseTooLarge):
            await finish(counted(2 * UNITS_MAX, UNITS_PER_SLICE))
        pace = Pace()
        await pace.spend(UNITS_MAX)
        with pytest.raises(ResponseTooLarge):
            await pace.spend(UNITS_PER_SLICE)

    run(scenario())


def test_long_work_begins_with_a_slice_of_its_own() -> None:
    async def begun(units: int) -> None:
        pace = Pace()
        await pace.spend(units)
        await pace.begin_slice()
        await pace.begin_slice()

    async def scenario() -> None:
        turns_before = await turns_of(begun(0))
        assert await turns_of(begun(1)) == turns_before + 1
        assert await turns_of(begun(UNITS_PER_SLICE)) == turns_before + 1

    run(scenario())


def test_items_in_parts_are_all_there_and_nothing_is_one_empty_part() -> None:
    assert parts([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
    assert parts([1, 2], 2) == [[1, 2]]
    assert parts([], 2) == [[]]


def test_large_requests_have_their_turns_one_after_the_other() -> None:
    async def scenario() -> None:
        large = LargeRequests(asyncio.get_running_loop())
        inside: list[int] = []
        most = 0

        async def request(number: int) -> None:
            nonlocal most
            async with large.turn(1000):
                inside.append(number)
                most = max(most, len(inside))
                await turns(3)
                inside.remove(number)

        await asyncio.gather(*(request(number) for number in range(5)))
        assert most == 1

    run(scenario())


def test_one_that_waits_for_long_does_not_keep_the_others_waiting() -> None:
    async def scenario() -> None:
        large = LargeRequests(asyncio.get_running_loop())
        over = asyncio.Event()

        async def join() -> None:
            async with large.turn(1000):
                await over.wait()

        joining = asyncio.ensure_future(join())
        await turns(1)
        async with large.turn(1000):  # once the first has had its second
            over.set()
        await joining
        async with large.turn(1000):
            pass

    run(scenario())


def test_a_request_that_is_cancelled_while_it_waits_gives_its_turn_away() -> None:
    async def scenario() -> None:
        large = LargeRequests(asyncio.get_running_loop())

        async def request() -> None:
            async with large.turn(1000):
                await turns(1)

        async with large.turn(1000):
            waiting = [asyncio.ensure_future(request()) for _ in range(3)]
            await turns(1)
            waiting[0].cancel()
        waiting[1].cancel()  # it is its turn now
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [one.cancelled() for one in waiting] == [True, True, False]

    run(scenario())


def test_more_bytes_than_may_wait_are_refused() -> None:
    async def scenario() -> None:
        large = LargeRequests(asyncio.get_running_loop())
        async with large.turn(8 << 20):

            async def request() -> None:
                async with large.turn(8 << 20):
                    pass

            waiting = [asyncio.ensure_future(request()) for _ in range(8)]
            await turns(1)
            with pytest.raises(ProtocolViolation, match="too many large requests"):
                await request()
        await asyncio.gather(*waiting)

    run(scenario())
