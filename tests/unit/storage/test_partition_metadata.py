"""`partition.metadata`: Kafka's format, with a checksum."""

import pytest

from ottla.model import Uuid
from ottla.storage.partition_metadata import (
    MetadataDamaged,
    decode_metadata,
    encode_metadata,
    has_checksum,
)

TOPIC_ID = Uuid(bytes(range(16)))
OF_KAFKA = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"


def test_what_was_written_is_read() -> None:
    data = encode_metadata(TOPIC_ID)
    assert data.startswith(OF_KAFKA)
    assert has_checksum(data)
    assert decode_metadata(data) == TOPIC_ID


def test_a_file_without_a_checksum_is_read_only_where_none_is_required() -> None:
    assert not has_checksum(OF_KAFKA)
    assert decode_metadata(OF_KAFKA, is_checked=False) == TOPIC_ID
    with pytest.raises(MetadataDamaged):
        decode_metadata(OF_KAFKA)


def test_no_changed_byte_gives_another_id() -> None:
    data = encode_metadata(TOPIC_ID)
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(MetadataDamaged):
                decode_metadata(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"\xff", OF_KAFKA[:-1], OF_KAFKA + b"more\n"])
def test_anything_else_is_damaged(data: bytes) -> None:
    with pytest.raises(MetadataDamaged):
        decode_metadata(data, is_checked=False)
