"""Messages as both queues have them: a record, and how often it was delivered."""

from ottla.work.leases import Lease, LeaseState


class Delivered:
    """A message that this consumer has received."""

    __slots__ = ("__weakref__", "_lease")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lease.name} {self._lease.state.value}>"

    @property
    def value(self) -> bytes | None:
        return self._lease.record.record.value

    @property
    def key(self) -> bytes | None:
        return self._lease.record.record.key

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self._lease.record.record.headers

    def header(self, name: str) -> bytes | None:
        """The value of a header, the last one of that name; None if there is none."""
        return next((value for own, value in reversed(self.headers) if own == name), None)

    @property
    def timestamp_ms(self) -> int:
        return self._lease.record.record.timestamp_ms

    @property
    def topic(self) -> str:
        return self._lease.record.tp.topic

    @property
    def partition(self) -> int:
        return self._lease.record.tp.partition

    @property
    def offset(self) -> int:
        return self._lease.record.offset

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this time included."""
        return self._lease.record.delivery_count

    @property
    def is_held(self) -> bool:
        """True until it is settled, or its lease is known to be lost."""
        return self._lease.state in {LeaseState.HELD, LeaseState.SETTLING}

    @property
    def is_settled(self) -> bool:
        """True once it is acknowledged, given back or rejected."""
        return self._lease.state is LeaseState.SETTLED
