"""The background work of a broker, in one list."""

from collections.abc import Awaitable, Callable
from typing import Final

from ottla.broker.background import Chore
from ottla.broker.dispatch import Dispatcher
from ottla.broker.partition_retirement import PartitionRetirement
from ottla.broker.server import Server
from ottla.broker.services import Services
from ottla.config import BrokerConfig

_SWEEP_S: Final = 1.0
_EXPIRE_S: Final = 0.25
_DISK_S: Final = 1.0
_WATERMARKS_S: Final = 5.0
_RETRY_S: Final = 1.0
_PRUNE_S: Final = 300.0
_DEAD_LETTERS_S: Final = 2.0
_ACKNOWLEDGED_S: Final = 5.0
_GENERATION_S: Final = 600.0


def broker_chores(
    server: Server,
    dispatcher: Dispatcher,
    services: Services,
    *,
    check_disk: Callable[[], Awaitable[None]],
    note_logs_removed: Callable[[], Awaitable[None]],
    raise_generation: Callable[[], Awaitable[None]],
) -> list[Chore]:
    replicas, state = services.replicas, services.state

    def config() -> BrokerConfig:
        return services.settings.broker

    return [
        Chore("sweep", lambda: _SWEEP_S, server.sweep),
        Chore("expire", lambda: _EXPIRE_S, dispatcher.produce.expire),
        Chore("disk", lambda: _DISK_S, check_disk),
        *_replica_chores(services),
        Chore("deleted topics", lambda: _RETRY_S, note_logs_removed),
        Chore("generation", lambda: _GENERATION_S, raise_generation),
        Chore(
            "store revision",
            lambda: config().flush_checkpoint_interval_ms / 1000,
            lambda: replicas.remember_store(state.image.revision),
        ),
        Chore(
            "retention",
            lambda: config().retention_check_ms / 1000,
            replicas.chores.delete_old_segments,
        ),
        Chore(
            "compaction",
            lambda: config().cleaner_backoff_ms / 1000,
            lambda: replicas.chores.compact(config().cleaner_memory_bytes),
        ),
        Chore(
            "scrub",
            lambda: replicas.chores.scrubber.rest_s(
                config().scrub_interval_ms, config().scrub_bytes_per_s
            ),
            lambda: replicas.chores.scrub(config().scrub_interval_ms),
        ),
        Chore(
            "producers",
            lambda: config().retention_check_ms / 1000,
            lambda: replicas.chores.expire_producers(config().producer_expiry_ms),
        ),
        Chore(
            "offsets",
            lambda: config().offsets_retention_check_ms / 1000,
            services.expire_offsets,
        ),
        Chore(
            "transactional ids",
            lambda: config().transactional_id_check_ms / 1000,
            services.expire_transactional_ids,
        ),
        *_share_chores(services),
        Chore(
            "checkpoint",
            lambda: config().flush_checkpoint_interval_ms / 1000,
            replicas.chores.checkpoint,
        ),
    ]


def _replica_chores(services: Services) -> list[Chore]:
    """The work for replicas as members of their cluster."""
    replicas, settings = services.replicas, services.settings
    return [
        Chore("watermarks", lambda: _WATERMARKS_S, replicas.checkpoint_watermarks),
        Chore("unfinished", lambda: _RETRY_S, replicas.retry_unfinished),
        Chore(
            "sealed partitions",
            lambda: settings.broker.partition_check_ms / 1000,
            PartitionRetirement(services).look,
        ),
    ]


def _share_chores(services: Services) -> list[Chore]:
    """The work for share groups."""
    return [
        Chore("acknowledged records", lambda: _ACKNOWLEDGED_S, services.delete_acknowledged),
        Chore("dead letters", lambda: _DEAD_LETTERS_S, services.resume_dead_letters),
        Chore("share states", lambda: _PRUNE_S, services.prune_share_states),
    ]
