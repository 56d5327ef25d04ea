"""Brokers that came shortly before, and so are elected last.

A client that loses its connection to a broker waits before it tries that broker again, librdkafka
up to ten seconds. Until then it cannot write to what that broker leads, while it is connected to
the others.
"""

from typing import Final

from ottla.cluster.image import ClusterImage
from ottla.model import BrokerId

_NEW_S: Final = 60.0  # how long a broker counts as new


class Arrivals:
    """When each broker became ready, as far as this process has seen it."""

    def __init__(self) -> None:
        self._ready_s: dict[BrokerId, float] = {}  # in the order of their coming

    def note_image(self, old: ClusterImage, new: ClusterImage, now_s: float) -> None:
        """Brokers may have come or gone."""
        if new.brokers is old.brokers:
            return
        for broker, alive in new.brokers.items():
            known = old.brokers.get(broker)
            if known is None or known.epoch != alive.epoch:
                self._ready_s.pop(broker, None)
                self._ready_s[broker] = now_s

    def recent(self, now_s: float) -> tuple[BrokerId, ...]:
        """The brokers that count as new, in the order of their coming."""
        return tuple(
            broker for broker, ready_s in self._ready_s.items() if now_s - ready_s < _NEW_S
        )
