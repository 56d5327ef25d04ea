"""A response that does not exist yet: completed once, or abandoned by its client."""

import pytest

from ottla.broker.pending import Pending


def pending(notes: list[str], *, is_barrier: bool = False) -> Pending:
    made = Pending(is_barrier=is_barrier)
    made.on_complete(lambda: notes.append(f"complete {made.parts!r}"))
    made.on_abandon(lambda: notes.append("abandoned"))
    return made


def test_a_response_is_there_when_its_connection_is_notified() -> None:
    notes: list[str] = []
    waiting = pending(notes)
    assert waiting.parts is None
    waiting.complete(b"response")
    assert notes == ["complete b'response'"]


def test_no_bytes_at_all_complete_a_response_too() -> None:
    notes: list[str] = []
    waiting = pending(notes)
    waiting.complete(b"")
    assert notes == ["complete b''"]
    with pytest.raises(AssertionError, match="a response completes once"):
        waiting.complete(b"again")


def test_a_response_that_no_connection_waits_for_yet_is_kept() -> None:
    waiting = Pending(is_barrier=True)
    waiting.complete([b"head", b"tail"])
    assert waiting.parts == [b"head", b"tail"]
    assert waiting.is_barrier


def test_a_client_that_leaves_is_reported_once() -> None:
    notes: list[str] = []
    waiting = pending(notes)
    waiting.abandon()
    waiting.abandon()
    assert notes == ["abandoned"]


def test_after_the_client_has_left_its_connection_is_not_notified() -> None:
    notes: list[str] = []
    waiting = pending(notes)
    waiting.abandon()
    waiting.complete(b"too late")
    assert notes == ["abandoned"]


def test_a_client_that_leaves_after_its_response_is_complete_abandons_nothing() -> None:
    notes: list[str] = []
    waiting = pending(notes)
    waiting.complete(b"response")
    waiting.abandon()
    assert notes == ["complete b'response'"]


def test_nothing_has_to_wait_for_either() -> None:
    Pending(is_barrier=False).abandon()
