"""Peers that are dead for certain, long before their leases end.

Where a broker has listened, on this machine, and connections are refused now, there is no process
any more: its registration is removed, so that others lead. A peer that does not respond, or that is
on another machine, may be cut off only: there the lease decides.

A peer that is gone stays in Metadata's list of brokers for a while: librdkafka lays the partitions
of a broker that leaves the list aside for up to a second, also if another broker leads them.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import BrokerImage
from ottla.model import BrokerId

log = logging.getLogger("ottla.replication")

_REFUSED_S: Final = 0.2  # of refused connections: a process may be about to be replaced
_LISTED_S: Final = 30.0  # after its death, before a broker leaves the list
_CALM_S: Final = 60.0  # after one death of a broker, before the next is declared here


class PeerDeaths:
    """Notes which peers accept connections, and has those removed that no longer do."""

    def __init__(
        self,
        broker_id: BrokerId,
        clock: Clock,
        remove: Callable[[BrokerId, int], Awaitable[None]],
    ) -> None:
        """`remove` ends the registration of a broker, if it still has this epoch."""
        self._broker_id = broker_id
        self._clock = clock
        self._image = ClusterImage()
        self._remove = remove
        self._reached: dict[BrokerId, int] = {}  # in which epoch a peer has accepted a connection
        self._refused_s: dict[BrokerId, float] = {}  # since when it refuses them
        self._removed_s: dict[BrokerId, float] = {}
        self._gone: dict[BrokerId, tuple[BrokerImage, float]] = {}  # when each left the image

    def note_image(self, image: ClusterImage) -> None:
        """Brokers may have come or gone."""
        before, self._image = self._image.brokers, image
        if image.brokers is not before:
            now_s = self._clock.monotonic_s()
            for peer in before.keys() - image.brokers.keys():
                self._gone[peer] = before[peer], now_s

    def recent(self) -> list[BrokerImage]:
        """Brokers that died or left shortly before: clients still have to do with them."""
        if not self._gone:
            return []
        oldest_s = self._clock.monotonic_s() - _LISTED_S
        for peer, (_, gone_s) in list(self._gone.items()):
            if gone_s < oldest_s or peer in self._image.brokers:
                del self._gone[peer]
        return [broker for _, (broker, _) in sorted(self._gone.items())]

    def note_reached(self, peer: BrokerId) -> None:
        """A peer has accepted a connection."""
        self._refused_s.pop(peer, None)
        if (registered := self._image.registered.get(peer)) is not None:
            self._reached[peer] = registered.epoch

    async def note_refused(self, peer: BrokerId) -> bool:
        """A connection to a peer was refused; True if the caller should soon try again.

        Until that has gone on for long enough, each refusal counts.
        """
        registered = self._image.registered.get(peer)
        if registered is None or self._reached.get(peer) != registered.epoch:
            return False  # dead already, or it has not begun to listen
        now_s = self._clock.monotonic_s()
        if not self._is_here(peer) or now_s - self._removed_s.get(peer, -_CALM_S) < _CALM_S:
            return False
        if now_s - self._refused_s.setdefault(peer, now_s) < _REFUSED_S:
            return True
        self._removed_s[peer] = now_s
        del self._refused_s[peer]
        extra = {"broker": peer, "epoch": registered.epoch, "address": registered.endpoint}
        log.warning("peer is dead: nothing listens where it did", extra=extra)
        await self._remove(peer, registered.epoch)
        return False

    def _is_here(self, peer: BrokerId) -> bool:
        """True if the peer is on the machine of this broker."""
        registered = self._image.registered
        own, other = registered.get(self._broker_id), registered[peer]
        return own is not None and own.machine is not None and own.machine == other.machine
