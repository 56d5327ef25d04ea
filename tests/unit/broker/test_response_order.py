"""Responses leave in the order of their requests."""

from typing import cast

from ottla.broker.pending import Part, Pending
from ottla.broker.response_order import ResponseOrder
from ottla.broker.writer import Writer


class NotedWriter:
    """Keeps what is queued."""

    def __init__(self) -> None:
        self.written: list[Part] = []

    def queue(self, part: Part) -> None:
        self.written.append(part)


def test_a_pending_response_holds_back_those_behind_it() -> None:
    order, writer = ResponseOrder(), NotedWriter()
    first, second = Pending(is_barrier=False), Pending(is_barrier=False)
    order.extend([first, b"between", second])
    second.complete(b"second")
    order.release(cast("Writer", writer))
    assert writer.written == []
    first.complete([b"first, ", b"in parts"])
    order.release(cast("Writer", writer))
    assert writer.written == [b"first, ", b"in parts", b"between", b"second"]
    assert not order


def test_a_barrier_blocks_requests_until_it_is_complete() -> None:
    order = ResponseOrder()
    assert not order.is_blocked
    order.append(Pending(is_barrier=False))
    assert not order.is_blocked
    barrier = Pending(is_barrier=True)
    order.append(barrier)
    assert order.is_blocked
    barrier.complete(b"")
    assert not order.is_blocked


def test_too_many_pending_responses_block_too() -> None:
    order = ResponseOrder(Pending(is_barrier=False) for _ in range(255))
    assert not order.is_blocked
    order.append(b"one more")
    assert order.is_blocked


def test_whoever_works_on_a_response_learns_that_its_client_has_gone() -> None:
    order, abandoned = ResponseOrder(), list[str]()
    pending = Pending(is_barrier=True)
    pending.on_abandon(lambda: abandoned.append("stopped"))
    pending.on_complete(lambda: abandoned.append("notified"))
    order.extend([b"sent", pending])
    order.abandon()
    assert abandoned == ["stopped"]
    assert not order
    pending.complete(b"too late")
    assert abandoned == ["stopped"]
