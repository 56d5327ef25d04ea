"""Parts of a share partition's state as messages, in requests and in records alike."""

from collections.abc import Iterable

from ottla.model import Offset
from ottla.protocol.messages import share_state as wire
from ottla.queues.share_state import Cause, DeliveryState, StateBatch


def batch_messages(batches: Iterable[StateBatch]) -> list[wire.StateBatch]:
    """Batches of a state, for a request or a record."""
    return [
        wire.StateBatch(
            first_offset=batch.first,
            last_offset=batch.last,
            delivery_state=batch.state,
            delivery_count=batch.deliveries,
            not_before_ms=batch.not_before_ms,
            cause=batch.cause,
            is_sending=batch.is_sending,
            member_id=batch.member,
            reason=batch.reason,
        )
        for batch in batches
    ]


def batches_of(messages: Iterable[wire.StateBatch]) -> tuple[StateBatch, ...]:
    """The inverse of `batch_messages`; ValueError for a state or cause that is unknown."""
    return tuple(
        StateBatch(
            Offset(one.first_offset),
            Offset(one.last_offset),
            DeliveryState(one.delivery_state),
            one.delivery_count,
            one.not_before_ms,
            Cause(one.cause),
            one.is_sending,
            one.member_id,
            one.reason,
        )
        for one in messages
    )
