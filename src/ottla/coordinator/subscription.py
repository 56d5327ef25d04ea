"""What consumers say about themselves in the metadata of a join, which is opaque otherwise."""

from struct import Struct, error
from typing import Final

from ottla.errors import ProtocolViolation
from ottla.protocol.codec import decode
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

_VERSION: Final = Struct(">h")
_VERSION_MAX: Final = 3  # later versions only add fields behind those of this one


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribes to; None when it does not speak the usual format."""
    try:
        (version,) = _VERSION.unpack_from(metadata)
        if version < 0:
            return None
        found = decode(
            ConsumerProtocolSubscription, min(version, _VERSION_MAX), metadata, _VERSION.size
        )
    except (error, ProtocolViolation):
        return None
    return frozenset(found.topics)
