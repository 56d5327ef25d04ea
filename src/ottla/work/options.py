"""Arguments of queues, checked."""

from typing import Final

_DELAY_MAX_S: Final = 24 * 3600
REASON_MAX: Final = 200  # characters


def delay_ms(delay_s: float | None) -> int | None:
    """The wait of a message that is given back; None for that of its group."""
    if delay_s is None:
        return None
    if not 0 <= delay_s <= _DELAY_MAX_S:
        raise ValueError(f"delay: 0 to {_DELAY_MAX_S} seconds, not {delay_s}")
    return int(delay_s * 1000)
