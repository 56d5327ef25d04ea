"""The registration of a broker with its cluster: alone under its id, and with replicas in order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from ottla.broker.environment import Environment
from ottla.broker.meta_properties import Identity, MetaProperties
from ottla.broker.stores import machine_name
from ottla.cluster.controller.brokers import note_generation
from ottla.cluster.controller.leaders import forfeit
from ottla.cluster.restored import StoreRestored
from ottla.cluster.state import ClusterState
from ottla.cluster.values import CLIENT_LISTENER, UNREGISTERED, BrokerImage
from ottla.config import BrokerConfig
from ottla.errors import ApiError, StorageFailed, UsageRefused
from ottla.model import BrokerId, Endpoint
from ottla.replication.forfeits import forfeits
from ottla.replication.replicas import Replicas
from ottla.replication.waiting import do_work
from ottla.storage.disk_worker import Worker

log = logging.getLogger("ottla.broker")

_OWN_STORE_TTL_MS: Final = 30_000  # of the lease where no other broker waits for its end
_HAND_OVER_S: Final = 30.0  # for other brokers to take over what this one leads


class Place(NamedTuple):
    """The id of a broker, and where it is: replicas are spread over racks and machines."""

    broker_id: BrokerId
    rack: str | None
    machine: str | None  # found by itself if None


class Registration:
    """Registers one broker, again if need be, and hands over what it leads when it leaves."""

    def __init__(
        self,
        place: Place,
        state: ClusterState,
        replicas: Replicas,
        meta: MetaProperties,
        worker: Worker,
        environment: Environment,
        note_failure: Callable[[OSError], StorageFailed],
    ) -> None:
        """`note_failure` takes the data directory offline if need be; the error is raised."""
        self._place = place
        self._broker_id = place.broker_id
        self._state = state
        self._replicas = replicas
        self._meta = meta
        self._worker = worker
        self._environment = environment
        self._note_failure = note_failure
        self._last_use: Identity | None = meta.identity  # as this process found the directory
        self._epoch = UNREGISTERED  # of the last registration of this process
        self._is_leaving = False

    async def wait_lost(self) -> None:
        """Return when this broker has to register again.

        Not while another process is registered under its id, nor when it is about to leave.
        """
        state = self._state
        while True:
            alive = state.image.brokers.get(self._broker_id)
            is_own = alive is None or alive.epoch == self._epoch
            if is_own and not state.is_registered and not self._is_leaving:
                return
            await state.next_image()

    async def register(self, address: Endpoint, config: BrokerConfig) -> None:
        """Become a broker of the cluster that clients reach at `address`."""
        state, environment = self._state, self._environment
        machine = machine_name(environment.machine_id, state.image.cluster_id)
        broker = BrokerImage(
            self._broker_id,
            {CLIENT_LISTENER: address},
            self._place.rack,
            self._place.machine or machine,
            state.draw_uuid(),
        )
        ttl_ms = config.broker_session_timeout_ms
        self._epoch = await state.register(
            broker,
            ttl_ms=_OWN_STORE_TTL_MS if environment.has_own_store else ttl_ms,
            prepare=self._prepare,
        )

    def check_store(self) -> None:
        """Refuse a store that is older than the logs: it was restored from a copy."""
        if self._environment.has_own_store:
            return
        for tp, found in self._replicas.logs.items():
            partition = self._state.image.partition(tp)
            if partition is not None and found.epochs.latest > partition.leader_epoch:
                was = f"its log here has epoch {found.epochs.latest}"
                text = f"{tp} is at leader epoch {partition.leader_epoch}, and {was}"
                raise UsageRefused(str(StoreRestored(text)))

    async def wait_alone(self, config: BrokerConfig) -> None:
        """Return when no other process is registered under this broker's id.

        The one that used this directory has ended, as the lock shows: its registration may be
        replaced. Any other is given the time of a lease to end.
        """
        if self._environment.has_own_store:
            return
        state, last_epoch = self._state, self._meta.identity.broker_epoch
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * config.broker_session_timeout_ms / 1000):
                while (other := state.image.registered.get(self._broker_id)) is not None:
                    if other.epoch == last_epoch:
                        return
                    await state.next_image()
                return
        other = state.image.registered[self._broker_id]
        raise UsageRefused(
            f"broker {self._broker_id} is running elsewhere, at {other.endpoint}: choose another"
            " --node-id, or stop that one"
        )

    async def leave(self) -> None:
        """Let other brokers lead what this one leads, if there are any."""
        self._is_leaving = True
        if len(self._state.image.brokers) < 2:
            return
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                await self._state.resign()
        except (ApiError, TimeoutError) as problem:  # then they take over when the lease ends
            log.warning("leaders not handed over", extra={"reason": problem})

    async def step_down(self, problem: str) -> None:
        """Leave all partitions to other brokers, if there are any: this one cannot serve them."""
        if not self._state.is_registered or self._is_leaving:
            return
        if len(self._state.image.brokers) < 2:
            return
        log.error("partitions given up", extra={"broker": self._broker_id, "reason": problem})
        await self._state.step_down()

    async def raise_generation(self) -> None:
        """Number the disk anew, first there and then in the store.

        A copy of the disk from before that is brought back has a lower number, though it is of
        this registration: what the broker acknowledged since is not on it.
        """
        state, epoch = self._state, self._epoch
        if self._environment.has_own_store or not state.is_registered or self._is_leaving:
            return
        try:
            await do_work(self._worker, self._meta.raise_generation)
            generation = self._meta.identity.generation
            await state.commit(
                lambda image: note_generation(image, self._broker_id, epoch, generation)
            )
        except (ApiError, OSError) as problem:  # then an older copy is seen a while later
            log.info("generation of the disk not raised", extra={"reason": problem})

    def note_closed(self) -> None:
        """Everything in the directory is on disk."""
        if not self._environment.has_own_store:
            self._meta.note_closed()

    async def _prepare(self, epoch: int) -> None:
        """Give up the replicas that may lack what was committed, before this broker is ready.

        Afterwards, and not before, the directory knows under which registration it is used: the
        evidence that it is not the one that was used last outlives a start that fails half-way.
        """
        if self._environment.has_own_store:
            return
        boot_id = self._environment.boot_id
        if self._last_use is not None:
            await self._forfeit(self._last_use, boot_id)
            self._last_use = None
        try:
            await do_work(self._worker, partial(self._meta.note_registered, epoch, boot_id))
        except OSError as error:
            raise self._note_failure(error) from error

    async def _forfeit(self, last_use: Identity, boot_id: str) -> None:
        member = self._state.image.members.get(self._broker_id)
        known = (UNREGISTERED, 0) if member is None else (member.epoch, member.generation)
        find = partial(
            forfeits,
            broker=self._broker_id,
            logs=self._replicas.logs,
            is_outdated=(last_use.broker_epoch, last_use.generation) < known,
            lost_power=bool(last_use.boot_id) and last_use.boot_id != boot_id,
        )
        await self._state.commit(lambda image: forfeit(image, self._broker_id, find(image)))
