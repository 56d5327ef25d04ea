"""Settings of share groups are those in force, however often they are asked for."""

from dataclasses import dataclass, field, replace

import pytest

from ottla.broker import share_settings
from ottla.broker.share_settings import ShareGroupSettings
from ottla.cluster.image import ClusterImage
from ottla.config import BrokerConfig
from ottla.settings import Settings

LOCK = "share.record.lock.duration.ms"
DEFAULT_MS = 30_000


@dataclass
class FakeState:
    """The cluster's state, as far as settings are read from it."""

    image: ClusterImage = field(default_factory=ClusterImage)

    def change(self, group_id: str, lock_ms: int) -> None:
        configs = {**self.image.group_configs, group_id: {LOCK: str(lock_ms)}}
        self.image = replace(self.image, group_configs=configs)


def test_a_change_counts_at_once() -> None:
    state, settings = FakeState(), Settings(BrokerConfig())
    groups = ShareGroupSettings(state, settings)  # type: ignore[arg-type]
    assert groups.of("g").limits.lock_ms == DEFAULT_MS
    assert groups.of("g") is groups.of("g")
    state.change("g", 20_000)
    assert groups.of("g").limits.lock_ms == 20_000
    assert groups.of("other").limits.lock_ms == DEFAULT_MS
    known = groups.of("g")
    state.change("other", 25_000)
    assert groups.of("g") is known, "nothing of it has changed"
    assert groups.of("other").limits.lock_ms == 25_000
    settings.change({"group.share.max.size": "7"}, {})
    assert groups.of("g") is not known, "limits of groups follow from the broker's settings too"
    assert groups.of("g") == known


def test_groups_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_settings, "_KNOWN_MAX", 3)
    groups = ShareGroupSettings(FakeState(), Settings(BrokerConfig()))  # type: ignore[arg-type]
    first = groups.of("0")
    for number in range(1, 4):
        groups.of(str(number))
    assert groups.of("0") is not first
