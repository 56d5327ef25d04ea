"""What goes in comes out: every client, every codec, every shape of a record."""

import pytest

from compat.adapter import CODECS, Client, Received, Refused, Sent
from compat.conftest import MakeTopic
from ottla.errors import ErrorCode
from ottla.records.batch import Record, build_batch

SHAPES = (
    Sent(value=b"plain"),
    Sent(value=b"keyed", key=b"k"),
    Sent(value=b"", key=b"empty value"),
    Sent(value=b""),
    Sent(value=None, key=b"null value"),
    Sent(value=None),
    Sent(value=b"empty key", key=b""),
    Sent(value=b"headers", headers=(("a", b"1"), ("b", b""), ("a", b"again"))),
    Sent(value=b"x" * 10_000, key=b"y" * 1000, headers=(("h", b"z" * 1000),)),
)
NOTHING = (None, None, ())


def content(record: Sent | Received) -> tuple[object, ...]:
    return record.key, record.value, record.headers


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_all_others_read(
    client: Client, codec: str, every_client: list[Client], make_topic: MakeTopic
) -> None:
    topic = make_topic()
    sent = [one for one in SHAPES if client.sends_neither_key_nor_value or content(one) != NOTHING]
    offsets = client.produce(topic, *sent, codec=codec)
    if client.tells_offsets:
        assert offsets == list(range(len(sent)))
    for reader in every_client:
        got = reader.consume(topic, len(sent))
        assert [content(one) for one in got] == [content(one) for one in sent], reader.name
        assert [one.offset for one in got] == list(range(len(sent))), reader.name
