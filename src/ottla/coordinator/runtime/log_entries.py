"""Entries of a coordinator's partition, apart from what their records mean.

A coordinator writes most records for itself. Some it writes for a producer, inside the
producer's transaction, as offsets that count only once the transaction is committed: those
are in batches that carry the producer's identity, and the marker that ends the transaction
follows in the same partition. A machine sees all of it in the order of the log.
"""

from typing import NamedTuple

from ottla.model import ProducerEpoch, ProducerId


class ProducerIdentity(NamedTuple):
    """A producer id with its epoch, which tells a producer from the one that replaced it."""

    id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        return f"{self.id}/{self.epoch}"


class Entry(NamedTuple):
    """A record's key and value as the log has them; `producer` is set in a transaction."""

    key: bytes | None
    value: bytes | None
    producer: ProducerIdentity | None = None


class TransactionEnded(NamedTuple):
    """A marker: the producer's records before it count if it is committed, else they are void."""

    producer: ProducerIdentity
    is_committed: bool


class UnreadableRecord(Exception):
    """A record in a coordinator's topic has a format that this version does not know."""
