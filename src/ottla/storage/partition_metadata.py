"""`partition.metadata`: which topic a log belongs to.

Kafka's format, which is two lines, and a third line with a checksum. Kafka reads the first two and
looks no further.
"""

import re
from typing import Final

from ottla.model import NO_UUID, Uuid, format_uuid, parse_uuid
from ottla.records.crc import crc32c

_UNCHECKED: Final = re.compile(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n")
_CHECKED: Final = re.compile(
    rb"(version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n)crc32c: ([0-9a-f]{8})\n"
)


class MetadataDamaged(Exception):
    """The file is not what was written: the topic's id is unknown."""


def encode_metadata(topic_id: Uuid) -> bytes:
    body = f"version: 0\ntopic_id: {format_uuid(topic_id)}\n".encode()
    return body + f"crc32c: {crc32c(body):08x}\n".encode()


def decode_metadata(data: bytes, *, is_checked: bool = True) -> Uuid:
    """The topic's id, or `MetadataDamaged`: also for want of a checksum, where `is_checked`."""
    if (checked := _CHECKED.fullmatch(data)) is not None:
        if crc32c(checked[1]) != int(checked[3], 16):
            raise MetadataDamaged("its checksum does not match")
        return parse_uuid(checked[2].decode())
    unchecked = _UNCHECKED.fullmatch(data)
    if unchecked is None:
        raise MetadataDamaged("it cannot be read")
    if is_checked:
        raise MetadataDamaged("it has no checksum")
    topic_id = parse_uuid(unchecked[1].decode())
    if topic_id == NO_UUID:
        raise MetadataDamaged("it names no topic")
    return topic_id


def has_checksum(data: bytes) -> bool:
    return _CHECKED.fullmatch(data) is not None
