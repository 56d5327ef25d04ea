"""Peers that are dead for certain, long before their leases end.

Where a broker has listened, on this machine, and connections are refused now, there is no process
any more: its registration is removed, so that others lead. A peer that does not respond, or that is
on another machine, may be cut off only: there the lease decides.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.model import BrokerId

log = logging.getLogger("ottla.replication")

_REFUSED_S: Final = 0.5  # of refused connections: a process may be about to be replaced
_CALM_S: Final = 60.0  # after one death of a broker, before the next is declared here


class PeerDeaths:
    """Notes which peers accept connections, and has those removed that no longer do."""

    def __init__(
        self,
        broker_id: BrokerId,
        clock: Clock,
        image: Callable[[], ClusterImage],
        remove: Callable[[BrokerId, int], Awaitable[None]],
    ) -> None:
        """`remove` ends the registration of a broker, if it still has this epoch."""
        self._broker_id = broker_id
        self._clock = clock
        self._image = image
        self._remove = remove
        self._reached: dict[BrokerId, int] = {}  # in which epoch a peer has accepted a connection
        self._refused_s: dict[BrokerId, float] = {}  # since when it refuses them
        self._removed_s: dict[BrokerId, float] = {}

    def note_reached(self, peer: BrokerId) -> None:
        """A peer has accepted a connection."""
        self._refused_s.pop(peer, None)
        if (registered := self._image().registered.get(peer)) is not None:
            self._reached[peer] = registered.epoch

    async def note_refused(self, peer: BrokerId) -> None:
        """A connection to a peer was refused; the caller tries again soon."""
        registered = self._image().registered.get(peer)
        if registered is None or self._reached.get(peer) != registered.epoch:
            return  # dead already, or it has not begun to listen
        if not self._is_here(peer):
            return
        now_s = self._clock.monotonic_s()
        since_s = self._refused_s.setdefault(peer, now_s)
        if now_s - since_s < _REFUSED_S or now_s - self._removed_s.get(peer, -_CALM_S) < _CALM_S:
            return
        self._removed_s[peer] = now_s
        del self._refused_s[peer]
        extra = {"broker": peer, "epoch": registered.epoch, "address": registered.endpoint}
        log.warning("peer is dead: nothing listens where it did", extra=extra)
        await self._remove(peer, registered.epoch)

    def _is_here(self, peer: BrokerId) -> bool:
        """True if the peer is on the machine of this broker."""
        registered = self._image().registered
        own, other = registered.get(self._broker_id), registered[peer]
        return own is not None and own.machine is not None and own.machine == other.machine
