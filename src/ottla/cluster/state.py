"""The cluster as this process knows it: follows the store, decides, commits, stays registered."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.cluster import controller, layout
from ottla.cluster.controller import Decision
from ottla.cluster.image import (
    BROKER_PREFIX,
    CLUSTER_KEY,
    BrokerImage,
    Change,
    ClusterId,
    ClusterIdentity,
    ClusterImage,
    TopicImage,
    broker_key,
)
from ottla.cluster.store import (
    NEVER,
    Compacted,
    Compare,
    Conflict,
    CoordinationStore,
    Delete,
    Entry,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
)
from ottla.config import BrokerConfig
from ottla.errors import ApiError, RequestTimedOut
from ottla.model import BrokerId, ProducerId, Uuid, format_uuid

Answer = TypeVar("Answer")
Decide = Callable[[ClusterImage], Decision[Answer]]
Subscriber = Callable[[ClusterImage, ClusterImage], None]

ATTEMPTS_MAX: Final = 100  # of a commit, each after somebody else's got in first
COMMIT_TIMEOUT_S: Final = 30.0
RETRY_PAUSE_S: Final = 1.0
LEASE_TTL_MS: Final = 10_000
KEEP_ALIVES_PER_TTL: Final = 3
_WRITES_PER_COMMIT: Final = 64  # what every kind of store takes at once


def draw_uuid(rng: random.Random) -> Uuid:
    """A random id, marked as one the way RFC 9562 wants it."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return Uuid(bytes(raw))


@dataclass(frozen=True, slots=True)
class _Registration:
    """What this process holds in the cluster while it is one of its brokers."""

    broker: BrokerId
    epoch: int
    lease: LeaseId
    tasks: tuple[asyncio.Task[None], ...]


class ClusterState:
    """The newest image, and the way to change it. One owner: the event loop it was opened on.

    `on_lost` is called with what happened: StoreUnavailable when the store does not answer (it is
    tried again), LeaseLost when this process is no longer the broker it registered as (it may
    register again), anything else when a task of this object has ended for good. Without `follower`
    the image stays as it is: whoever relies on it has to watch that task.
    """

    def __init__(
        self,
        store: CoordinationStore,
        rng: random.Random,
        image: ClusterImage,
        config: BrokerConfig,
        on_lost: Callable[[BaseException], None],
    ) -> None:
        """Use `open`."""
        self.image = image
        self._store = store
        self._rng = rng
        self._config = config
        self._on_lost = on_lost
        self._subscribers: list[Subscriber] = []
        self._advanced = asyncio.Event()
        self._registration: _Registration | None = None
        self._self: BrokerImage | None = None  # who this process is, or was, or wants to be
        self._tasks: list[asyncio.Task[None]] = []
        self.follower = self._spawn(self._follow(), "ottla-cluster-follow")

    @classmethod
    async def open(
        cls,
        store: CoordinationStore,
        rng: random.Random,
        *,
        on_lost: Callable[[BaseException], None],
        config: BrokerConfig | None = None,
    ) -> "ClusterState":
        """Read everything and begin to follow; the first one to open a store names the cluster."""
        snapshot = await store.range("")
        image = layout.read_image(snapshot)
        if not image.cluster_id:
            await _name_cluster(store, rng, snapshot)
            image = layout.read_image(await store.range(""))
        elif layout.unchecked_entries(snapshot):
            await _add_checksums(store, snapshot)
            image = layout.read_image(await store.range(""))
        return cls(store, rng, image, config or BrokerConfig(), on_lost)

    async def close(self) -> None:
        """Leave the cluster at once and stop following. The store stays open: it was lent."""
        registration, self._registration = self._registration, None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if registration is not None:
            with contextlib.suppress(StoreUnavailable):  # then the lease runs out by itself
                await self._store.revoke(registration.lease)

    @property
    def is_registered(self) -> bool:
        """Whether this process is one of the cluster's brokers, as far as it knows."""
        return self._registration is not None

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(old, new)` on every change, before anything else can look at the new."""
        self._subscribers.append(callback)

    def brokers_to_ask(self) -> list[BrokerImage]:
        """The brokers that clients are told of. Never none: a client would be left with nobody.

        If no broker is alive, it is this one, which is at least there to be asked again.
        """
        alive = [broker for _, broker in sorted(self.image.brokers.items())]
        return alive or [one for one in (self._self,) if one is not None]

    def draw_uuid(self) -> Uuid:
        """An id for something new."""
        return draw_uuid(self._rng)

    def draw_start(self) -> int:
        """Where placing a topic's replicas begins."""
        return self._rng.randrange(1 << 16)

    async def commit(self, decide: Decide[Answer]) -> Answer:
        """Make a decision true: on the newest image, atomically, and seen here on return.

        `decide` is called again when somebody else changed what it decided on. Its ApiError
        passes through, once it is certain not to come from an image that was out of date.
        """
        decision, _ = await self._commit(decide, leases={})
        return decision.answer

    async def catch_up(self) -> None:
        """Return when the image has everything that anybody committed before this call."""
        async with _bounded():
            await self._reach((await self._store.get(CLUSTER_KEY)).revision)

    async def register(self, broker: BrokerImage, *, ttl_ms: int = LEASE_TTL_MS) -> int:
        """Become this broker, in place of whoever was it before. Returns the broker epoch."""
        assert self._registration is None, "a process is one broker"
        self._self = broker
        lease = await self._store.grant(ttl_ms)
        try:
            _, epoch = await self._commit(
                lambda image: controller.register_broker(image, broker, self._config),
                leases={broker_key(broker.id): lease},
            )
        except BaseException:
            with contextlib.suppress(StoreUnavailable):
                await self._store.revoke(lease)
            raise
        tasks = (
            self._spawn(self._keep_alive(lease, ttl_ms / 1000), "ottla-cluster-lease"),
            self._spawn(self._tend(broker.id), "ottla-cluster-tend"),
        )
        self._registration = _Registration(broker.id, epoch, lease, tasks)
        self._check_registration()
        return epoch

    async def allocate_producer_ids(self, count: int = 1000) -> range:
        """A block of producer ids that nobody was given before or will be given again."""
        key = layout.PRODUCER_IDS_KEY
        for _ in range(ATTEMPTS_MAX):
            first, seen = ProducerId(0), NEVER
            for entry in (await self._store.get(key)).entries:
                first, seen = _next_producer_id(entry), entry.mod_revision
            value = layout.encode_next_producer_id(ProducerId(first + count))
            with contextlib.suppress(Conflict):
                await self._store.commit([Put(key, value)], [Compare(key, seen)])
                return range(first, first + count)
        raise _too_busy()

    # Deciding

    async def _commit(
        self, decide: Decide[Answer], leases: Mapping[str, LeaseId]
    ) -> tuple[Decision[Answer], Revision]:
        async with _bounded():
            for _ in range(ATTEMPTS_MAX):
                decision = await self._decide(decide)
                if not decision.changes:
                    return decision, self.image.revision
                compares = _compares(self.image, decision.changes)
                try:
                    revision = await self._store.commit(_writes(decision.changes, leases), compares)
                except Conflict:
                    await self._see_why(compares)
                    continue
                await self._reach(revision)
                return decision, revision
        raise _too_busy()

    async def _decide(self, decide: Decide[Answer]) -> Decision[Answer]:
        """A decision on `self.image` as it is on return.

        A refusal, or a decision to change nothing, is not checked by the store's compare, so it
        has to be taken on an image that is known to be the newest.
        """
        with contextlib.suppress(ApiError):
            decision = decide(self.image)
            if decision.changes:
                return decision
        await self.catch_up()
        return decide(self.image)

    async def _see_why(self, compares: Sequence[Compare]) -> None:
        """After a conflict: wait until the image shows what the store has shown already."""
        while all(
            self.image.mod_revision(compare.key) == compare.mod_revision for compare in compares
        ):
            await self._next_image()

    async def _reach(self, revision: Revision) -> None:
        while self.image.revision < revision:
            await self._next_image()

    async def _next_image(self) -> None:
        if self.follower.done():
            raise StoreUnavailable("this broker no longer follows the cluster: restart it")
        await self._advanced.wait()

    # Following

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_watch()
            except StoreUnavailable as problem:
                self._on_lost(problem)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _follow_watch(self) -> None:
        try:
            async with contextlib.aclosing(self._store.watch("", self.image.revision)) as batches:
                async for batch in batches:
                    self._advance(self.image.apply(layout.read_changes(batch), batch.revision))
        except Compacted:
            self._advance(layout.read_image(await self._store.range("")))

    def _advance(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        assert old.revision <= image.revision, "the store never goes back"
        for callback in self._subscribers:
            callback(old, image)
        self._check_registration()
        self._wake()

    def _wake(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()

    # Being a broker

    async def _keep_alive(self, lease: LeaseId, ttl_s: float) -> None:
        loop = asyncio.get_running_loop()
        kept_at_s = loop.time()
        while True:
            await asyncio.sleep(ttl_s / KEEP_ALIVES_PER_TTL)
            asked_at_s = loop.time()
            try:
                await self._store.keep_alive(lease)
                kept_at_s = asked_at_s
            except LeaseLost as problem:
                self._lose_registration(problem)
            except StoreUnavailable as problem:
                self._on_lost(problem)
                if loop.time() - kept_at_s > ttl_s:
                    self._lose_registration(LeaseLost("the store did not answer in time"))

    async def _tend(self, broker: BrokerId) -> None:
        """The controller's duty: when brokers come or go, see that every partition is led."""
        while True:
            brokers = self.image.brokers
            if self.image.controller_id == broker:
                try:
                    await self.commit(lambda image: controller.settle_leaders(image, self._config))
                except ApiError as problem:
                    self._on_lost(problem)
                    await asyncio.sleep(RETRY_PAUSE_S)
                    continue
            while self.image.brokers is brokers:
                await self._next_image()

    def _check_registration(self) -> None:
        if (registration := self._registration) is None:
            return
        broker = self.image.brokers.get(registration.broker)
        if broker is None:
            self._lose_registration(LeaseLost(f"broker {registration.broker} was taken for dead"))
        elif broker.epoch != registration.epoch:
            self._lose_registration(
                LeaseLost(f"another process registered as broker {registration.broker}")
            )

    def _lose_registration(self, problem: LeaseLost) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            for task in registration.tasks:
                task.cancel()
            self._on_lost(problem)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        """No task dies in silence, and who no longer follows the cluster stops being part of it."""
        self._tasks.remove(task)
        self._wake()
        if not task.cancelled() and (problem := task.exception()) is not None:
            for other in self._registration.tasks if self._registration else ():
                other.cancel()
            self._on_lost(problem)


def _next_producer_id(entry: Entry) -> ProducerId:
    try:
        return layout.decode_next_producer_id(entry.value)
    except layout.ValueDamaged as damage:  # it was whole when the broker started
        raise StoreUnavailable(str(damage)) from damage


async def _name_cluster(store: CoordinationStore, rng: random.Random, snapshot: Snapshot) -> None:
    if snapshot.entries:
        raise layout.ValueDamaged(CLUSTER_KEY, "is missing")
    identity = ClusterIdentity(ClusterId(format_uuid(draw_uuid(rng))))
    with contextlib.suppress(Conflict):  # somebody else was faster, which is as good
        await store.commit(
            [Put(CLUSTER_KEY, layout.encode(CLUSTER_KEY, identity))],
            [Compare(CLUSTER_KEY, NEVER)],
        )


async def _add_checksums(store: CoordinationStore, snapshot: Snapshot) -> None:
    """Write a store of format 1 again, in the format of today.

    Registrations are left out and end: they were under leases, and every broker makes its own.
    """
    old = layout.unchecked_entries(snapshot)
    with contextlib.suppress(Conflict):  # somebody else is at it, or it is read again soon
        for first in range(0, len(old), _WRITES_PER_COMMIT):
            entries = old[first : first + _WRITES_PER_COMMIT]
            await store.commit(
                [
                    Delete(entry.key)
                    if entry.key.startswith(BROKER_PREFIX)
                    else Put(entry.key, layout.add_checksum(entry))
                    for entry in entries
                ],
                [Compare(entry.key, entry.mod_revision) for entry in entries],
            )


def _compares(image: ClusterImage, changes: Sequence[Change]) -> list[Compare]:
    """That nobody has changed what is about to be written, nor who is alive to be in sync.

    Without the latter a broker could come into an ISR after it was taken out of all of them.
    """
    keys = {change.key for change in changes}
    keys.update(
        broker_key(broker)
        for change in changes
        if isinstance(change.value, TopicImage)
        for partition in change.value.partitions
        for broker in partition.isr
    )
    return [Compare(key, image.mod_revision(key)) for key in sorted(keys)]


def _writes(changes: Sequence[Change], leases: Mapping[str, LeaseId]) -> list[Write]:
    return [
        Delete(change.key)
        if change.value is None
        else Put(change.key, layout.encode(change.key, change.value), leases.get(change.key))
        for change in changes
    ]


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            yield
    except TimeoutError:
        raise _too_busy() from None


def _too_busy() -> RequestTimedOut:
    return RequestTimedOut(
        "the cluster's coordination store was too slow or too busy to take the change: look"
        " whether it was made, then try again"
    )
