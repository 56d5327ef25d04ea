"""The bytes per second that replicas outside the ISR may fetch, all of a broker together."""


class CatchUpBudget:
    """Bytes that may be fetched now. More may come at once than is left: then it is paid back."""

    def __init__(self) -> None:
        self._left_bytes = 0.0
        self._seen_s = 0.0

    def wait_s(self, rate_bytes_per_s: int, now_s: float) -> float:
        """Seconds until more may be fetched; 0 if that is now. A rate of 0 is no limit."""
        if not rate_bytes_per_s:
            self._left_bytes, self._seen_s = 0.0, now_s
            return 0.0
        earned_bytes = (now_s - self._seen_s) * rate_bytes_per_s
        self._left_bytes = min(self._left_bytes + earned_bytes, 0.0)
        self._seen_s = now_s
        return -self._left_bytes / rate_bytes_per_s

    def take(self, size_bytes: int) -> None:
        """So many bytes have come."""
        self._left_bytes -= size_bytes
