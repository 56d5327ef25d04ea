"""Responses of the gateway that etcd does not send: refused, never misread."""

import pytest

from ottla.cluster.etcd_messages import Keyspace, MalformedResponse, Message
from ottla.cluster.store import NEVER, Compare, Revision, StoreUnavailable


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_a_response_that_is_no_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedResponse, match="JSON"):
        Message.parse(data)


@pytest.mark.parametrize("value", [b'"x"', b"[]", b"{}", b"null", b"1.5"])
def test_a_number_is_a_number(value: bytes) -> None:
    with pytest.raises(MalformedResponse, match="'revision'"):
        Message.parse(b'{"revision":%s}' % value).number("revision")
    assert Message.parse(b'{"revision":"7"}').number("revision") == 7
    assert Message.parse(b'{"revision":7}').number("revision") == 7
    assert Message.parse(b"{}").number("revision") == 0


@pytest.mark.parametrize(
    "data",
    [
        b'{"kvs":7}',
        b'{"kvs":[7]}',
        b'{"kvs":[{"key":7}]}',
        b'{"kvs":[{"key":"not base64"}]}',
        b'{"kvs":[{"key":"b3RoZXIva2V5"}]}',  # other/key
        b'{"events":[{"kv":7}]}',
    ],
)
def test_entries_that_cannot_be_are_malformed(data: bytes) -> None:
    message, keys = Message.parse(data), Keyspace("ottla/")
    with pytest.raises(MalformedResponse):
        [*keys.entries(message), *keys.batches(message, NEVER)]


def test_a_key_of_another_program_below_the_prefix_is_named() -> None:
    message = Message.parse(b'{"kvs":[{"key":"b3R0bGEv/w=="}]}')
    with pytest.raises(StoreUnavailable, match="Ottla did not write"):
        Keyspace("ottla/").entries(message)


def test_a_commit_without_writes_has_an_operation_that_all_servers_agree_on() -> None:
    request = Keyspace("ottla/").commit_request([], [Compare("a", Revision(7))])
    (operation,) = Message(request).messages("success")
    assert operation.message("request_range").text("key")
    assert not operation.message("request_range").flag("serializable")
