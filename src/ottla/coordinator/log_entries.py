"""What a coordinator's partition holds, apart from what its records mean.

A coordinator writes most records for itself. Some it writes for a producer, inside the
producer's transaction, as offsets that count only once the transaction is committed: those
stand in batches that carry the producer's identity, and the marker that ends the transaction
follows in the same partition. A machine sees all of it in the order of the log.
"""

from typing import NamedTuple

from ottla.model import ProducerEpoch, ProducerId


class ProducerIdentity(NamedTuple):
    """Who writes: the epoch tells a producer from the one that replaced it."""

    id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        return f"{self.id}/{self.epoch}"


class Entry(NamedTuple):
    """A record as it stands in the log; `producer` is whose transaction it belongs to."""

    key: bytes | None
    value: bytes | None
    producer: ProducerIdentity | None = None


class TransactionEnded(NamedTuple):
    """A marker: what the producer wrote here up to now counts, or is void."""

    producer: ProducerIdentity
    is_committed: bool
