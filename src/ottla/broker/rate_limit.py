"""How often something may happen: so many times a second, saved up for one second at most."""


class RateLimit:
    """A token bucket that begins full. It holds as many tokens as are added in a second."""

    def __init__(self, now_s: float) -> None:
        self._spent = 0.0  # tokens missing from a full bucket
        self._counted_s = now_s

    def take(self, count: int, *, per_second: int, now_s: float) -> int:
        """How many of `count` may happen now; these are counted."""
        passed_s = now_s - self._counted_s
        assert passed_s >= 0, "monotonic time only goes forward"
        self._spent = max(0.0, self._spent - passed_s * per_second)
        self._counted_s = now_s
        allowed = min(count, max(0, int(per_second - self._spent)))
        self._spent += allowed
        return allowed
