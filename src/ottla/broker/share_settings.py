"""Settings of share groups, computed again only when they or the broker's have changed."""

from dataclasses import dataclass
from typing import Final

from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.config import BrokerConfig, GroupConfig
from ottla.queues.share_limits import ShareLimits
from ottla.settings import Settings

_KNOWN_MAX: Final = 1000  # groups that are remembered


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a share group, as its partitions use them."""

    config: GroupConfig
    limits: ShareLimits


class ShareGroupSettings:
    """The settings of all share groups of a broker."""

    def __init__(self, state: ClusterState, settings: Settings) -> None:
        self._state = state
        self._settings = settings
        self._known: dict[str, tuple[object, object, GroupSettings]] = {}
        self._fresh: dict[str, GroupSettings] = {}  # those that were asked for since a change
        self._image: ClusterImage | None = None
        self._broker: BrokerConfig | None = None

    def of(self, group_id: str) -> GroupSettings:
        if self._image is self._state.image and self._broker is self._settings.broker:
            settings = self._fresh.get(group_id)
            if settings is not None:
                return settings
        else:
            self._fresh.clear()
            self._image, self._broker = self._state.image, self._settings.broker
        found = self._fresh[group_id] = self._find(group_id)
        return found

    def _find(self, group_id: str) -> GroupSettings:
        raw = self._state.image.group_configs.get(group_id)
        broker = self._settings.broker
        known = self._known.get(group_id)
        if known is not None and known[0] is raw and known[1] is broker:
            return known[2]
        config = self._settings.group(raw or {})
        limits = ShareLimits(
            deliveries_max=config.share_delivery_count_limit,
            locks_max=config.share_partition_max_record_locks,
            lock_ms=config.share_record_lock_duration_ms,
            allows_renewal=config.share_renew_acknowledge_enable,
            backoff_ms=config.share_retry_backoff_ms,
            backoff_max_ms=config.share_retry_backoff_max_ms,
            has_dead_letters=bool(config.dead_letter_topic),
            is_lease_durable=config.share_lease_durable,
        )
        made = GroupSettings(config, limits)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
            self._fresh.clear()
        self._known[group_id] = (raw, broker, made)
        return made
