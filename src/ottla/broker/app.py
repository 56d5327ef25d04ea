"""A broker: everything is built here and only here, started, and stopped."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla import __version__
from ottla.broker import background
from ottla.broker.apis import Handlers
from ottla.broker.background import Chore
from ottla.broker.chores import broker_chores
from ottla.broker.defects import Defects, is_defect
from ottla.broker.descriptors import descriptor_limit, share_out
from ottla.broker.dispatch import Dispatcher
from ottla.broker.environment import Environment
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.handlers.produce import Produce
from ottla.broker.membership import Disk, Membership
from ottla.broker.meta_properties import Identity, MetaProperties, check_identity, read_identity
from ottla.broker.metadata_changes import CHANGES_PER_COMMIT, MetadataChanges
from ottla.broker.metrics import MetricsPages, collect
from ottla.broker.readiness import Phase, Readiness
from ottla.broker.registration import Place, Registration
from ottla.broker.server import Server
from ottla.broker.services import Services
from ottla.broker.store_outage import StoreOutage
from ottla.broker.topic_creation import TopicCreation
from ottla.cluster.controller.topics import logs_removed
from ottla.cluster.image import ClusterImage
from ottla.cluster.measured_store import MeasuredStore
from ottla.cluster.state import ClusterState
from ottla.config import BrokerConfig
from ottla.errors import ApiError
from ottla.model import BrokerId, Endpoint
from ottla.replication.cutting import Cutting
from ottla.replication.following import Following
from ottla.replication.isr_changes import IsrChanges
from ottla.replication.repair import Repairs
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.storage.cleaner import Cleaner
from ottla.storage.delete_records import Deletions
from ottla.storage.log_dir import LogDir
from ottla.storage.opened_logs import OpenedLogs
from ottla.storage.scrub import Scrubber
from ottla.telemetry import AnyMetric

if TYPE_CHECKING:
    from ottla.cluster.etcd_address import EtcdAccess

log = logging.getLogger("ottla.broker")

_LEAVE_S: Final = 0.15  # timeout of giving the lease back after a defect
_THREAD_S: Final = 0.05  # timeout of waiting for each thread after a defect
_FIRST_BROKER: Final = BrokerId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of a broker that is started."""

    data: Path
    listen: Endpoint
    advertise: Endpoint | None = None  # port 0 is that of the listener
    node_id: BrokerId = _FIRST_BROKER
    config: BrokerConfig = field(default_factory=BrokerConfig)
    metrics: Endpoint | None = None
    hints: bool = False
    store: str | None = None  # that brokers share; None for one in the data directory
    store_access: "EtcdAccess | None" = None  # if the store is etcd
    rack: str | None = None
    machine: str | None = None
    ends_with_stdin: bool = False  # stops when standard input ends: its supervisor is gone


class Broker:
    """A running broker; `start` makes one, `stop` ends it and leaves a clean directory.

    A defect ends it at once (`defects`): it serves no request any more, and `stop` raises it.
    """

    def __init__(
        self,
        options: ServeOptions,
        *,
        log_dir: LogDir,
        store: MeasuredStore,
        state: ClusterState,
        environment: Environment,
        defects: Defects,
        outage: StoreOutage,
        meta: MetaProperties,
    ) -> None:
        """Use `start`."""
        loop = asyncio.get_running_loop()
        self._options = options
        self._loop = loop
        self._monotonic_s = environment.clock.monotonic_s
        self._has_peers = not environment.has_own_store
        self._log_dir = log_dir
        self._store = store
        self._state = state
        self.settings = Settings(options.config)
        self._change_settings(state.image)
        self.defects = defects
        self._outage = outage
        self._meta = meta
        self._flusher = environment.start_flusher(
            environment.files, log_dir.take_offline, environment.clock
        )
        self._cleaner = Cleaner(environment.files, environment.start_worker("ottla-cleaner"))
        self._worker = environment.start_worker("ottla-worker")
        isr_wanted, repair_wanted = asyncio.Event(), asyncio.Event()
        following = self._new_following(environment, repair_wanted.set)
        self._replicas = self._new_replicas(environment, following, isr_wanted.set)
        self._isr_changes = IsrChanges(
            state, self._replicas.leaders, environment.clock, self._config, isr_wanted
        )
        self._repairs = Repairs(
            state, following, log_dir, environment.clock, options.node_id, repair_wanted
        )
        place = Place(options.node_id, options.rack, options.machine)
        self._registration = Registration(
            place, state, self._replicas, meta, self._worker, environment, log_dir.note_failure
        )
        disk = Disk(log_dir, self._flusher, self._config) if self._has_peers else None
        self._membership = Membership(
            self._registration, disk, register=self._register, note_lost=outage.note_lost
        )
        self.services = self._new_services(environment)
        self._dispatcher = self._new_dispatcher(environment)
        self._server = Server(
            loop,
            self.settings,
            self._dispatcher,
            defects.end,
            room=share_out(descriptor_limit()).connections,
        )
        defects.on_first = self._stop_serving
        self._readiness = Readiness(
            defects=defects,
            log_dir=log_dir,
            state=state,
            settings=self.settings,
            flusher=self._flusher,
            replicas=self._replicas,
        )
        self._pages = MetricsPages(self._collect, self._readiness.obstacle, defects.watch)
        self._tasks: list[asyncio.Task[None]] = []
        self.address = options.listen
        self.metrics_address: Endpoint | None = None

    def _new_following(
        self, environment: Environment, want_repair: Callable[[], None]
    ) -> Following:
        return Following(
            self._options.node_id,
            environment.clock,
            environment.rng,
            config=self._config,
            flusher=self._flusher,
            watch=self.defects.watch,
            report_dead=self._state.suspect,
            want_repair=want_repair,
            cutting=Cutting(self._log_dir, self._worker),
        )

    def _new_replicas(
        self, environment: Environment, following: Following, want_isr_change: Callable[[], None]
    ) -> Replicas:
        return Replicas(
            self._log_dir,
            self.settings.topic,
            environment.clock,
            environment.rng,
            broker_id=self._options.node_id,
            flusher=self._flusher,
            cleaner=self._cleaner,
            worker=self._worker,
            deletions=Deletions(self._log_dir, self._worker),
            scrubber=Scrubber(
                environment.files,
                self._worker,
                self._log_dir.path,
                has_peers=self._has_peers,
            ),
            following=following,
            want_isr_change=want_isr_change,
            soon=self._loop.call_soon,
            remember=self._meta.remember,
        )

    def _new_services(self, environment: Environment) -> Services:
        changes = MetadataChanges(self._state, self._replicas)
        services = Services(
            node_id=self._options.node_id,
            state=self._state,
            replicas=self._replicas,
            settings=self.settings,
            changes=changes,
            topic_creation=TopicCreation(
                self._state, changes, self.settings, self._replicas, environment.clock
            ),
            clock=environment.clock,
            rng=environment.rng,
            note_defect=self.defects.end,
        )
        self._replicas.make_waiting = services.lead_waiting
        self._replicas.chores.waiting_of = services.waiting_of
        return services

    def _new_dispatcher(self, environment: Environment) -> Dispatcher:
        return Dispatcher(
            Produce(self.services),
            Fetch(self.services),
            Handlers(self.services),
            self.settings,
            self._loop,
            self.defects.end,
            environment.clock,
        )

    def _config(self) -> BrokerConfig:
        return self.settings.broker

    def _collect(self) -> Iterable[AnyMetric]:
        return collect(
            self._server,
            self._dispatcher,
            self.services,
            self._replicas,
            self._flusher,
            self._store,
        )

    @classmethod
    async def start(cls, options: ServeOptions, environment: Environment) -> "Broker":
        """Recover the logs, register with the cluster, begin to listen."""
        defects = Defects(asyncio.get_running_loop())
        try:
            return await defects.unless_ended(cls._start(options, environment, defects))
        except BaseException:
            defects.close()
            raise

    @classmethod
    async def _start(
        cls, options: ServeOptions, environment: Environment, defects: Defects
    ) -> "Broker":
        async with AsyncExitStack() as undo:
            known = read_identity(environment.files, options.data)
            shares = share_out(descriptor_limit())
            log_dir = LogDir(environment.files, options.data, shares.files)
            undo.push(partial(_close_unstarted, log_dir, defects))
            opened = await environment.open_store(options.data, environment.clock)
            outage = StoreOutage(environment.clock.monotonic_s, defects.end)
            store = MeasuredStore(opened, environment.clock.monotonic_s, outage.note_up)
            undo.push_async_callback(store.close)
            state = await ClusterState.open(
                store,
                environment.rng,
                config=options.config,
                on_lost=outage.note_lost,
            )
            undo.push_async_callback(state.close)
            defects.watch(state.follower)
            image, node_id = state.image, options.node_id
            check_identity(
                options.data, known, image, node_id, has_own_store=environment.has_own_store
            )
            identity = known or Identity(image.cluster_id, node_id)
            meta = MetaProperties(
                environment.files, options.data, identity, is_written=identity.is_checked
            )
            if known is None:
                meta.remember(image.revision)
            broker = cls(
                options,
                log_dir=log_dir,
                store=store,
                state=state,
                environment=environment,
                defects=defects,
                outage=outage,
                meta=meta,
            )
            undo.push_async_callback(broker._pages.close)
            undo.push_async_callback(broker._server.close)
            undo.push_async_callback(broker._replicas.close)
            undo.callback(broker._flusher.close)
            undo.callback(broker.services.close_coordinators)
            undo.callback(broker._cleaner.close)
            undo.callback(broker._worker.close)
            await broker._begin(is_checked=identity.is_checked)
            undo.pop_all()
        return broker

    async def stop(self) -> None:
        """Drain, flush, leave the cluster, and mark the directory as cleanly closed.

        After a defect, before or during the stop, none of this: raises the defect as soon as
        connections, lease, threads and lock are released.
        """
        self._readiness.phase = Phase.STOPPING
        try:
            if self.defects.first is not None:
                raise self.defects.first
            await self.defects.unless_ended(self._close())
        except BaseException:
            await self._abandon()
            raise
        finally:
            self.defects.close()

    async def wait_failed(self) -> None:
        """Return when a defect has ended the broker; `stop` raises it."""
        await self.defects.wait()

    async def _close(self) -> None:
        await self._registration.leave()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.services.close_coordinators()
        self._server.stop_taking()
        self._dispatcher.end_waits()
        await self._server.close()
        await self._dispatcher.close()
        await self._pages.close()
        await self._replicas.close()
        await self._replicas.remember_store(self._state.image.revision)
        self._cleaner.close()
        self._worker.close()
        await self._state.close()
        await self._store.close()
        self._flusher.close()
        self._log_dir.close()
        if self._log_dir.offline_reason is None:
            self._registration.note_closed()

    def _stop_serving(self) -> None:
        """Close all connections: after a defect no response is sent any more."""
        self.defects.attempt(self._server.stop_taking)
        for connection in list(self._server.connections):
            self.defects.attempt(connection.close)

    async def _abandon(self) -> None:
        """Release everything within a fraction of a second; nothing is flushed or marked clean."""
        self._stop_serving()
        attempt = self.defects.attempt
        for task in self._tasks:
            task.cancel()
        attempt(self.services.close_coordinators)
        await self._pages.close()
        for close in (self._state.close, self._store.close, self._replicas.close):
            await self.defects.attempt_within(_LEAVE_S, close())
        have_ended = [
            self._flusher.abandon(_THREAD_S),
            self._cleaner.abandon(_THREAD_S),
            self._worker.abandon(_THREAD_S),
        ]
        if all(have_ended):  # else a thread would change files under the next owner
            self._log_dir.abandon()

    async def _begin(self, *, is_checked: bool) -> None:
        begun_s = self._monotonic_s()
        if self._options.metrics is not None:
            self.metrics_address = await self._pages.listen(self._options.metrics)
        recovery_begun_s = self._monotonic_s()
        self.defects.watch(self._replicas.open(self._state.image, is_checked=is_checked))
        self._repairs.note_opened()
        recovery_ms = int(1000 * (self._monotonic_s() - recovery_begun_s))
        self._registration.check_store()
        opened = OpenedLogs.of(self._log_dir)
        self._state.subscribe(self._note_image)
        self.address = await self._server.bind(self._options.listen)
        await self._registration.wait_alone(self._config())
        await self._register()
        self._replicas.note_image(self._state.image)
        await self._replicas.wait_applied(self._state.image.revision)
        await self._replicas.remember_store(self._state.image.revision)
        self.services.open_coordinators()
        await self._server.listen(self.address)
        for work, name in self._long_work():
            self._tasks.append(self._loop.create_task(work, name=name))
            self.defects.watch(self._tasks[-1])
        self._readiness.phase = Phase.SERVING
        started = {
            "version": __version__,
            "data": str(self._log_dir.path.absolute()),
            "broker": self._options.node_id,
            "address": str(self.address),
            **opened._asdict(),
            "recovery_ms": recovery_ms,
            "start_ms": int(1000 * (self._monotonic_s() - begun_s)),
            "settings": self.settings.changed(),
        }
        log.info("broker started", extra=started)

    @property
    def advertised(self) -> Endpoint:
        """The address given to clients."""
        host, port = self._options.advertise or self.address
        return Endpoint(host, port or self.address.port)

    async def _register(self) -> None:
        await self._registration.register(self.advertised, self._config())

    def _long_work(self) -> Iterable[tuple[Coroutine[Any, Any, None], str]]:
        """The work that lasts as long as the broker, with a name for each task."""
        yield background.run(self._chores()), "ottla-chores"
        yield self._isr_changes.run(), "ottla-isr"
        yield self._membership.run(), "ottla-registration"
        if self._has_peers:
            yield self._repairs.run(), "ottla-repairs"

    async def _note_logs_removed(self) -> None:
        """Commit that this broker has no logs of deleted topics left: their tombstones can go."""
        gone = self._replicas.removed_topics()
        for first in range(0, len(gone), CHANGES_PER_COMMIT):
            part = gone[first : first + CHANGES_PER_COMMIT]
            decide = partial(logs_removed, broker=self._options.node_id, topic_ids=part)
            try:
                await self._state.commit(decide)
            except ApiError as problem:
                self._outage.note_lost(problem)
                return

    def _note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        node_id = self._options.node_id
        if old.broker_config != new.broker_config or old.config_of(node_id) != new.config_of(
            node_id
        ):
            self._change_settings(new)
            self._dispatcher.fetch.sessions.slots = self.settings.broker.fetch_sessions_max
            self._replicas.note_settings()
        self._replicas.note_image(new)
        self.services.note_image(old, new)

    def _change_settings(self, image: ClusterImage) -> None:
        self.settings.change(image.broker_config, image.config_of(self._options.node_id))

    def _chores(self) -> list[Chore]:
        return broker_chores(
            self._server,
            self._dispatcher,
            self.services,
            check_disk=self._membership.check_disk,
            note_logs_removed=self._note_logs_removed,
            raise_generation=self._registration.raise_generation,
        )


def _close_unstarted(
    log_dir: LogDir, defects: Defects, _: object, problem: BaseException | None, __: object
) -> None:
    """Close the directory of a broker that did not start; only opened logs leave a clean mark."""
    if defects.first is not None or (problem is not None and is_defect(problem)):
        log_dir.abandon()
    elif log_dir.logs:
        log_dir.close()
    else:
        log_dir.release()
