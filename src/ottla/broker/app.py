"""A broker, from options to serving and back: everything is built here, and only here."""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from ottla.broker import background
from ottla.broker.apis import Handlers
from ottla.broker.background import Chore
from ottla.broker.defects import Defects, is_defect, summary
from ottla.broker.descriptors import descriptor_limit, raise_descriptor_limit, share_out
from ottla.broker.dispatch import Dispatcher
from ottla.broker.environment import Environment
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.handlers.produce import Produce
from ottla.broker.meta_properties import Identity, MetaProperties, check_identity, read_identity
from ottla.broker.metadata_changes import CHANGES_PER_COMMIT, MetadataChanges
from ottla.broker.metrics import MetricsPages, collect
from ottla.broker.server import Server
from ottla.broker.services import Services
from ottla.broker.topic_creation import TopicCreation
from ottla.cluster.controller.topics import logs_removed
from ottla.cluster.image import BrokerImage, ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import CoordinationStore, LeaseLost, StoreUnavailable
from ottla.config import BrokerConfig
from ottla.errors import ApiError, UsageRefused
from ottla.model import BrokerId, Endpoint
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.storage.cleaner import Cleaner
from ottla.storage.delete_records import Deletions
from ottla.storage.disk_worker import ThreadWorker
from ottla.storage.flusher import ThreadFlusher
from ottla.storage.log_dir import LogDir
from ottla.storage.scrub import Scrubber

log = logging.getLogger("ottla.broker")

_SWEEP_S: Final = 1.0
_EXPIRE_S: Final = 0.25
_REGISTER_S: Final = 1.0
_RETRY_S: Final = 1.0
_COLLECT_ALL_S: Final = 600.0
_YOUNG: Final = 1  # the generations of objects that no search has seen yet
_COLLECT_S: Final = 30.0
_CLEANER_PAUSE_S: Final = 0.0002
_LEAVE_S: Final = 0.15  # so long a broker that a defect has ended tries to give its lease back
_THREAD_S: Final = 0.05  # and so long it waits for each of its threads
_FIRST_BROKER: Final = BrokerId(0)


DEFECT_STATUS: Final = 1  # of a process that a defect has ended


class _Phase(StrEnum):
    """Where a broker is in its life, as /readyz says it."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What somebody who starts a broker can say."""

    data: Path
    listen: Endpoint
    advertise: Endpoint | None = None
    node_id: BrokerId = _FIRST_BROKER
    config: BrokerConfig = field(default_factory=BrokerConfig)
    metrics: Endpoint | None = None
    hints: bool = False


class Broker:
    """One running broker; `start` makes one, `stop` ends it and leaves a clean directory.

    A defect ends it at once (`defects`): it serves nobody any more, and `stop` raises what it was.
    """

    def __init__(
        self,
        options: ServeOptions,
        *,
        log_dir: LogDir,
        store: CoordinationStore,
        state: ClusterState,
        environment: Environment,
        defects: Defects,
        meta: MetaProperties,
    ) -> None:
        """Use `start`."""
        loop = asyncio.get_running_loop()
        self._options = options
        self._loop = loop
        self._log_dir = log_dir
        self._store = store
        self._state = state
        self.settings = Settings(options.config)
        self._change_settings(state.image)
        self.defects = defects
        self._flusher = ThreadFlusher(
            environment.files,
            log_dir.take_offline,
            post=loop.call_soon_threadsafe,
            soon=loop.call_soon,
            monotonic_s=environment.clock.monotonic_s,
        )
        self._cleaner = Cleaner(
            environment.files,
            ThreadWorker(
                "ottla-cleaner",
                post=loop.call_soon_threadsafe,
                pause=partial(time.sleep, _CLEANER_PAUSE_S),
            ),
        )
        self._worker = ThreadWorker(
            "ottla-worker",
            post=loop.call_soon_threadsafe,
            pause=partial(time.sleep, _CLEANER_PAUSE_S),
        )
        self._replicas = Replicas(
            log_dir,
            self.settings.topic,
            environment.clock,
            environment.rng,
            broker_id=options.node_id,
            flusher=self._flusher,
            cleaner=self._cleaner,
            worker=self._worker,
            deletions=Deletions(log_dir, self._worker),
            scrubber=Scrubber(environment.files, self._worker, log_dir.path),
            soon=loop.call_soon,
            remember=meta.remember,
        )
        self._meta = meta
        changes = MetadataChanges(state, self._replicas)
        self._services = Services(
            node_id=options.node_id,
            state=state,
            replicas=self._replicas,
            settings=self.settings,
            changes=changes,
            topic_creation=TopicCreation(
                state, changes, self.settings, self._replicas, environment.clock
            ),
            clock=environment.clock,
            rng=environment.rng,
            note_defect=defects.end,
        )
        self._dispatcher = Dispatcher(
            Produce(self._services),
            Fetch(self._services),
            Handlers(self._services),
            self.settings,
            loop,
            defects.end,
        )
        self._server = Server(
            loop,
            self.settings,
            self._dispatcher.take,
            defects.end,
            room=share_out(descriptor_limit()).connections,
        )
        defects.on_first = self._stop_serving
        self._pages = MetricsPages(
            lambda: collect(
                self._server, self._dispatcher, self._services, self._replicas, self._flusher
            ),
            self._obstacle,
            defects.watch,
        )
        self._phase = _Phase.STARTING
        self._background: asyncio.Task[None] | None = None
        self.address = options.listen
        self.metrics_address: Endpoint | None = None

    @classmethod
    async def start(cls, options: ServeOptions, environment: Environment) -> "Broker":
        """Recover what is on disk, join the cluster, begin to listen."""
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
            undo.push(partial(_let_go, log_dir, defects))
            store = await environment.open_store(options.data, environment.clock)
            undo.push_async_callback(store.close)
            state = await ClusterState.open(
                store,
                environment.rng,
                config=options.config,
                on_lost=partial(_note_lost, defects),
            )
            undo.push_async_callback(state.close)
            defects.watch(state.follower)
            image, node_id = state.image, options.node_id
            check_identity(options.data, known, image, node_id)
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
                meta=meta,
            )
            undo.push_async_callback(broker._pages.close)
            undo.push_async_callback(broker._server.close)
            undo.push_async_callback(broker._replicas.close)
            undo.callback(broker._flusher.close)
            undo.callback(broker._services.close_coordinators)
            undo.callback(broker._cleaner.close)
            undo.callback(broker._worker.close)
            await broker._begin(is_checked=identity.is_checked)
            undo.pop_all()
        return broker

    async def stop(self) -> None:
        """Drain, flush, leave the cluster, and mark the directory as cleanly closed.

        After a defect, or when one is met on the way, none of this: raises it, as soon as
        everything that others could wait for has been let go of.
        """
        self._phase = _Phase.STOPPING
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
        """Returns when a defect has ended the broker; `stop` tells which."""
        await self.defects.wait()

    async def _close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        self._services.close_coordinators()
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

    def _stop_serving(self) -> None:
        """A defect: whoever is not answered yet never will be."""
        self.defects.attempt(self._server.stop_taking)
        for connection in list(self._server.connections):
            self.defects.attempt(connection.close)

    async def _abandon(self) -> None:
        """Let go of everything within a moment. Nothing is flushed and no clean mark is left."""
        self._stop_serving()
        attempt = self.defects.attempt
        if self._background is not None:
            self._background.cancel()
        attempt(self._services.close_coordinators)
        await self._pages.close()
        for close in (self._state.close, self._store.close, self._replicas.close):
            await self.defects.attempt_within(_LEAVE_S, close())
        are_over = [
            self._flusher.abandon(_THREAD_S),
            self._cleaner.abandon(_THREAD_S),
            self._worker.abandon(_THREAD_S),
        ]
        if all(are_over):  # else a thread would change files under the next owner
            self._log_dir.abandon()

    async def _begin(self, *, is_checked: bool) -> None:
        if self._options.metrics is not None:
            self.metrics_address = await self._pages.listen(self._options.metrics)
        self.defects.watch(self._replicas.open(self._state.image, is_checked=is_checked))
        self._state.subscribe(self._note_image)
        self.address = await self._server.bind(self._options.listen)
        await self._register()
        self._replicas.note_image(self._state.image)
        await self._replicas.wait_applied(self._state.image.revision)
        await self._replicas.remember_store(self._state.image.revision)
        self._services.open_coordinators()
        await self._server.listen(self.address)
        self._background = self._loop.create_task(background.run(self._chores()))
        self.defects.watch(self._background)
        self._phase = _Phase.SERVING

    async def _register(self) -> None:
        advertised = self._options.advertise or self.address
        await self._state.register(BrokerImage(self._options.node_id, advertised))

    async def _stay_registered(self) -> None:
        """Come back after having been taken for dead: paused, or cut off from the store."""
        if self._options.node_id in self._state.image.brokers:
            return
        try:
            await self._register()
        except (ApiError, LeaseLost, StoreUnavailable) as problem:
            _note_lost(self.defects, problem)
        else:
            log.warning("registered again", extra={"broker": self._options.node_id})

    async def _note_logs_removed(self) -> None:
        """Tell the store that no logs of deleted topics are left here, so that it may forget."""
        gone = self._replicas.removed_topics()
        for first in range(0, len(gone), CHANGES_PER_COMMIT):
            some = gone[first : first + CHANGES_PER_COMMIT]
            decide = partial(logs_removed, broker=self._options.node_id, topic_ids=some)
            try:
                await self._state.commit(decide)
            except ApiError as problem:
                _note_lost(self.defects, problem)
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
        self._services.note_image(old, new)

    def _change_settings(self, image: ClusterImage) -> None:
        self.settings.change(image.broker_config, image.config_of(self._options.node_id))

    def _obstacle(self) -> str | None:
        """Why clients should go elsewhere; None while what they write is acknowledged."""
        if self.defects.first is not None:
            return "a defect has ended the broker"
        if self._phase is not _Phase.SERVING:
            return f"the broker is {self._phase}"
        if self._log_dir.offline_reason is not None:
            return self._log_dir.offline_reason
        if not self._state.is_registered:
            return "the cluster has taken this broker for dead: it is registering again"
        stall_s = self.settings.broker.readiness_stall_ms / 1000
        if (syncing_s := self._flusher.unfinished_s) > stall_s:
            return f"the disk has been syncing for {syncing_s:.0f} s, nothing is acknowledged"
        if (behind_s := self._replicas.behind_s) > stall_s:
            return f"the partitions have not followed the cluster's changes for {behind_s:.0f} s"
        return None

    def _chores(self) -> list[Chore]:
        def config() -> BrokerConfig:
            return self.settings.broker

        replicas = self._replicas
        return [
            Chore("sweep", lambda: _SWEEP_S, self._server.sweep),
            Chore("expire", lambda: _EXPIRE_S, self._dispatcher.produce.expire),
            Chore("registration", lambda: _REGISTER_S, self._stay_registered),
            Chore("unfinished", lambda: _RETRY_S, replicas.retry_unfinished),
            Chore("deleted topics", lambda: _RETRY_S, self._note_logs_removed),
            Chore(
                "store revision",
                lambda: config().flush_checkpoint_interval_ms / 1000,
                lambda: replicas.remember_store(self._state.image.revision),
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
                self._services.expire_offsets,
            ),
            Chore(
                "transactional ids",
                lambda: config().transactional_id_check_ms / 1000,
                self._services.expire_transactional_ids,
            ),
            Chore(
                "checkpoint",
                lambda: config().flush_checkpoint_interval_ms / 1000,
                replicas.chores.checkpoint,
            ),
        ]


def _let_go(
    log_dir: LogDir, defects: Defects, _: object, problem: BaseException | None, __: object
) -> None:
    """The broker did not start: close what was opened, and say nothing of what was not."""
    if defects.first is not None or (problem is not None and is_defect(problem)):
        log_dir.abandon()
    elif log_dir.logs:
        log_dir.close()
    else:
        log_dir.release()


def _note_lost(defects: Defects, problem: BaseException) -> None:
    """Go on when the cluster can be joined again; else a task of its state has ended for good."""
    if isinstance(problem, (ApiError, LeaseLost)):
        log.warning("the coordination store is out of reach", extra={"reason": problem})
    else:
        defects.end(problem)


def serve(options: ServeOptions) -> int:
    """Run a broker until SIGTERM or SIGINT; the answer is the process's exit code."""
    if not __debug__:
        raise UsageRefused("run without -O: the assertions are part of the broker")
    import uvloop  # noqa: PLC0415  # only a serving process carries it

    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options))


async def _serve(options: ServeOptions) -> int:
    try:
        await _serve_until_told(options)
    except Exception as problem:
        if is_defect(problem):
            _exit_by(problem)
        raise
    return 0


def _exit_by(problem: BaseException) -> NoReturn:
    """End the process by a defect, without waiting for threads: one may be stuck at the disk."""
    log.critical("the broker was stopped by a defect", extra=summary(problem))
    sys.stdout.flush()
    os._exit(DEFECT_STATUS)


async def _serve_until_told(options: ServeOptions) -> None:
    gc.disable()  # what a start makes stays: `_collect_garbage` never looks at it
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    broker = await Broker.start(options, Environment())
    collector = loop.create_task(_collect_garbage())
    broker.defects.watch(collector)
    sys.stdout.write(f"ottla ready on {broker.address}\n")
    if options.hints:
        sys.stdout.write(_hints(broker.address))
    sys.stdout.flush()
    waits = [loop.create_task(stopped.wait()), loop.create_task(broker.wait_failed())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in (*waits, collector):
        task.cancel()
    log.info("stopping", extra={"address": broker.address})
    await broker.stop()


async def _collect_garbage() -> None:
    """Look for cycles at a time of our choosing: the collector's own choice shows in the p99.9.

    Among what is new every time; among everything, which stops the loop for 0.1 s per million
    objects, so seldom that it takes a ten thousandth of the time. What a start has made is not
    searched at all: with 10,000 partitions 425 objects of it were garbage.
    """
    gc.freeze()
    gc.disable()
    loop = asyncio.get_running_loop()
    whole_due_s = loop.time() + _COLLECT_ALL_S
    while True:
        await asyncio.sleep(_COLLECT_S)
        began_s = loop.time()
        if began_s < whole_due_s:
            gc.collect(_YOUNG)
            continue
        gc.collect()
        ended_s = loop.time()
        whole_due_s = ended_s + max(_COLLECT_ALL_S, 10_000 * (ended_s - began_s))


def _hints(address: Endpoint) -> str:
    return f"""
Try it from another terminal:

  echo 'hello, Ottla' | .venv/bin/ottla --broker {address} produce greetings
  .venv/bin/ottla --broker {address} consume greetings --from beginning
  .venv/bin/ottla --broker {address} topic describe greetings

Any Kafka client works too: bootstrap.servers={address}. Ctrl-C stops the broker.
"""
