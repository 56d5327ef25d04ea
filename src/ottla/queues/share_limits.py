"""Settings of a share group as its partitions use them, and what follows from them alone."""

from typing import Final, NamedTuple

from ottla.queues.key_order import WINDOW_RECORDS_MAX

_DOUBLINGS_MAX: Final = 32


class ShareLimits(NamedTuple):
    """Settings of a share group, as far as its partitions use them."""

    deliveries_max: int = 5  # 0 for no limit
    locks_max: int = 2000  # unfinished records in the window, but for those that wait
    lock_ms: int = 30_000
    allows_renewal: bool = True
    backoff_ms: int = 0  # before the second delivery; twice as long before each further one
    backoff_max_ms: int = 0
    waiting_max: int = 8000  # unfinished records in the window beside `locks_max`, if they wait
    key_window_max: int = WINDOW_RECORDS_MAX  # unfinished records in the window, ordered by key
    has_dead_letters: bool = False  # what fails for the last time is archiving at first
    is_lease_durable: bool = False  # what is acquired stays so when the leader changes

    def retry_delay_ms(self, deliveries: int) -> int:
        """How long a record waits that was delivered so often, without success."""
        doublings = min(max(deliveries - 1, 0), _DOUBLINGS_MAX)
        return min(self.backoff_ms << doublings, max(self.backoff_max_ms, self.backoff_ms))


def portion_max(count: int, size: int, deliveries_max: int) -> int | None:
    """How many records that were delivered `count` times are acquired at once; None for any.

    From half of the limit on, and not before the second delivery, each portion is half as large as
    the last; before the last delivery it is one record.
    """
    first = max(2, deliveries_max // 2)
    if count < first or not deliveries_max:
        return None
    if count + 1 >= deliveries_max:
        return 1
    return max(1, size >> (count - first + 1))
