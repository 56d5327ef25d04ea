"""Peers that are dead for certain, long before their leases end.

Where a broker has listened, and connections are refused now, there is no process any more: its
registration is removed, so that others lead. On another machine two of its peers have to find that,
for something in between may refuse connections to a broker that is alive. A peer that does not
respond may be cut off only: there the lease decides.

A peer that is gone stays in Metadata's list of brokers for a while: librdkafka lays the partitions
of a broker that leaves the list aside for up to a second, also if another broker leads them.
"""

import logging
from typing import Final, Protocol

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import BrokerImage, suspicion_key
from ottla.model import BrokerId

log = logging.getLogger("ottla.replication")

_REFUSED_S: Final = 0.2  # of refused connections: a process may be about to be replaced
_LISTED_S: Final = 30.0  # after its death, before a broker leaves the list
_CALM_S: Final = 60.0  # after one death of a broker, before the next is declared here
_FRESH_S: Final = 10.0  # for which the finding of another broker counts


class Report(Protocol):
    """How a broker that is found gone is reported to the cluster."""

    async def __call__(self, broker: BrokerId, epoch: int, by: BrokerId, stale: Revision) -> None:
        """End the registration of this epoch of `broker`, if others have found the same or need
        not; what was written in the revision `stale` no longer counts."""
        ...


class PeerDeaths:
    """Notes which peers accept connections, and reports those that no longer do."""

    def __init__(self, broker_id: BrokerId, clock: Clock, report: Report) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._image = ClusterImage()
        self._report = report
        self._reached: dict[BrokerId, int] = {}  # in which epoch a peer has accepted a connection
        self._refused_s: dict[BrokerId, float] = {}  # since when it refuses them
        self._reported_s: dict[BrokerId, float] = {}  # when it was last found to be gone
        self._gone: dict[BrokerId, tuple[BrokerImage, float]] = {}  # when each left the image
        self._suspected_s: dict[BrokerId, float] = {}  # when others last found it to be gone

    def note_image(self, image: ClusterImage) -> None:
        """Brokers may have come or gone."""
        before, self._image = self._image, image
        if image.brokers is not before.brokers:
            now_s = self._clock.monotonic_s()
            for peer in before.brokers.keys() - image.brokers.keys():
                self._gone[peer] = before.brokers[peer], now_s
        if image.suspicions is not before.suspicions:
            now_s = self._clock.monotonic_s()
            for key, peer in ((suspicion_key(peer), peer) for peer in image.suspicions):
                if image.mod_revision(key) != before.mod_revision(key):
                    self._suspected_s[peer] = now_s

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
        if now_s - self._reported_s.get(peer, -_CALM_S) < _CALM_S:
            return False
        if now_s - self._refused_s.setdefault(peer, now_s) < _REFUSED_S:
            return True
        self._reported_s[peer] = now_s
        del self._refused_s[peer]
        extra = {"broker": peer, "epoch": registered.epoch, "address": registered.endpoint}
        log.warning("peer is dead: nothing listens where it did", extra=extra)
        is_fresh = now_s - self._suspected_s.get(peer, now_s) < _FRESH_S
        stale = NEVER if is_fresh else self._image.mod_revision(suspicion_key(peer))
        await self._report(peer, registered.epoch, self._broker_id, stale)
        return False
