"""Peers that are dead for certain."""

import asyncio
from dataclasses import replace

from fakes.cluster_images import after, back, broker, cluster, gone
from ottla.clock import SystemClock
from ottla.cluster.controller.brokers import register_broker
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.values import Change, Suspicion, broker_key, suspicion_key
from ottla.model import BrokerId
from ottla.replication.peer_deaths import PeerDeaths

ONE, TWO = BrokerId(1), BrokerId(2)


class ManualClock(SystemClock):
    """Intervals are as long as the test says."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Watched:
    """Broker 1 watches broker 2."""

    def __init__(self, machines: tuple[str | None, str | None] = ("m", "m")) -> None:
        image = cluster(1, 2)
        changes = [
            Change(broker_key(BrokerId(number)), replace(broker(number), machine=machine))
            for number, machine in zip((1, 2), machines, strict=True)
        ]
        self.image: ClusterImage = image.apply(changes, image.revision)
        self.clock = ManualClock()
        self.reported: list[tuple[int, int]] = []
        self.stale: list[Revision] = []
        self.deaths = PeerDeaths(ONE, self.clock, self._report)
        self.deaths.note_image(self.image)

    async def _report(self, broker: BrokerId, epoch: int, by: BrokerId, stale: Revision) -> None:
        assert by == ONE
        self.reported.append((broker, epoch))
        self.stale.append(stale)

    def suspected_by(self, number: int) -> ClusterImage:
        suspicion = Suspicion(TWO, self.epoch, (BrokerId(number),))
        change = Change(suspicion_key(TWO), suspicion)
        return self.image.apply([change], Revision(self.image.revision + 1))

    def see(self, image: ClusterImage) -> None:
        self.image = image
        self.deaths.note_image(image)

    @property
    def epoch(self) -> int:
        return self.image.registered[TWO].epoch

    def refuse(self, for_s: float) -> None:
        """Connections are refused, again and again for so long."""
        for _ in range(5):
            asyncio.run(self.deaths.note_refused(TWO))
            self.clock.now_s += for_s / 4


def test_a_peer_that_listened_and_refuses_connections_is_dead() -> None:
    watched = Watched()
    watched.deaths.note_reached(TWO)
    watched.refuse(0.125)
    assert watched.reported == [], "it may be about to be replaced"
    watched.refuse(0.125)
    assert watched.reported == [(2, watched.epoch)]


def test_a_peer_is_asked_again_at_once_until_its_death_is_decided() -> None:
    watched = Watched()
    watched.deaths.note_reached(TWO)
    asked = []
    for _ in range(7):
        asked.append(asyncio.run(watched.deaths.note_refused(TWO)))
        watched.clock.now_s += 0.0625
    assert asked == [True] * 4 + [False] * 3


def test_a_peer_that_never_listened_in_this_registration_may_be_starting() -> None:
    watched = Watched()
    watched.refuse(2.0)
    watched.deaths.note_reached(TWO)
    watched.see(back(watched.image, 2))
    watched.refuse(2.0)
    assert watched.reported == []


def test_a_peer_that_accepts_in_between_is_alive() -> None:
    watched = Watched()
    watched.deaths.note_reached(TWO)
    for _ in range(5):
        watched.refuse(0.125)
        watched.deaths.note_reached(TWO)
    assert watched.reported == []


def test_what_others_have_found_counts_for_ten_seconds() -> None:
    for passed_s, is_stale in ((9.0, False), (11.0, True)):
        watched = Watched(("m", "n"))
        watched.deaths.note_reached(TWO)
        watched.see(watched.suspected_by(3))
        found = watched.image.revision
        watched.see(after(watched.image, register_broker(watched.image, broker(4))))
        watched.clock.now_s += passed_s
        watched.refuse(0.25)
        assert watched.stale == [found if is_stale else NEVER]


def test_what_others_have_found_again_counts_again() -> None:
    watched = Watched(("m", "n"))
    watched.deaths.note_reached(TWO)
    watched.see(watched.suspected_by(3))
    watched.clock.now_s += 11.0
    watched.see(watched.suspected_by(3))
    watched.refuse(0.25)
    assert watched.stale == [NEVER]


def test_a_peer_that_died_is_left_to_its_lease_for_a_while() -> None:
    watched = Watched()
    for _ in range(2):
        watched.deaths.note_reached(TWO)
        watched.refuse(1.0)
    assert len(watched.reported) == 1
    watched.clock.now_s += 60
    watched.deaths.note_reached(TWO)
    watched.refuse(1.0)
    assert len(watched.reported) == 2


def test_a_peer_that_is_gone_is_recent_for_half_a_minute_or_until_it_is_back() -> None:
    watched = Watched()
    two = watched.image.brokers[TWO]
    assert watched.deaths.recent() == []
    watched.see(gone(watched.image, 2))
    watched.clock.now_s += 29
    assert watched.deaths.recent() == [two]
    watched.clock.now_s += 2
    assert watched.deaths.recent() == []
    watched.see(back(watched.image, 2))
    watched.see(gone(watched.image, 2))
    watched.see(back(watched.image, 2))
    assert watched.deaths.recent() == []
