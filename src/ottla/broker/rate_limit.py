"""A rate limit: so many events a second, with a burst of one second."""


class RateLimit:
    """A token bucket that begins full, and holds the tokens of one second."""

    def __init__(self, now_s: float) -> None:
        self._spent = 0.0  # tokens missing from a full bucket
        self._counted_s = now_s

    def take(self, count: int, *, per_second: int, now_s: float) -> int:
        """The number of events, of `count`, that may happen now; they are counted."""
        passed_s = now_s - self._counted_s
        assert passed_s >= 0, "monotonic time only goes forward"
        self._spent = max(0.0, self._spent - passed_s * per_second)
        self._counted_s = now_s
        allowed = min(count, max(0, int(per_second - self._spent)))
        assert 0 <= allowed <= count, "no more is allowed than was asked for"
        self._spent += allowed
        return allowed
