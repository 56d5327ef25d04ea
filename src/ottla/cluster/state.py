"""The cluster as seen by this process: follows the store, commits decisions, stays registered."""

import asyncio
import contextlib
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.cluster import layout
from ottla.cluster.arrivals import Arrivals
from ottla.cluster.commits import compares, fits, fitting, writes
from ottla.cluster.controller.brokers import (
    note_dead,
    note_leaving,
    note_ready,
    register_broker,
    suspect,
)
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.leaders import begin_terms, settle_leaders
from ottla.cluster.image import ClusterImage
from ottla.cluster.lease import Lease
from ottla.cluster.opening import open_image
from ottla.cluster.restored import StoreRestored
from ottla.cluster.settling import Settling
from ottla.cluster.store import (
    Compare,
    Conflict,
    CoordinationStore,
    LeaseId,
    LeaseLost,
    Revision,
    StoreUnavailable,
    Write,
)
from ottla.cluster.store_following import StoreFollowing
from ottla.cluster.values import (
    CLUSTER_KEY,
    BrokerImage,
    Change,
    PartitionImage,
    broker_key,
    partition_key,
    ready_key,
)
from ottla.config import BrokerConfig
from ottla.errors import ApiError, RequestTimedOut
from ottla.model import BrokerId, TopicPartition, Uuid

Result = TypeVar("Result")
Decide = Callable[[ClusterImage], Decision[Result]]
Subscriber = Callable[[ClusterImage, ClusterImage], None]

ATTEMPTS_MAX: Final = 100  # of a commit, each after a conflict with another process
COMMIT_TIMEOUT_S: Final = 30.0
RETRY_PAUSE_S: Final = 1.0
LEASE_TTL_MS: Final = 10_000
KEEP_ALIVES_PER_TTL: Final = 3
_WATCH_S: Final = 0.2  # for a watch to report a revision, before everything is read
_OWN_COMMIT_S: Final = 2.0  # for a watch to report what this process has committed, likewise


def draw_uuid(rng: random.Random) -> Uuid:
    """A random UUID (version 4 of RFC 9562)."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return Uuid(bytes(raw))


@dataclass(frozen=True, slots=True)
class _Registration:
    """The registration of this process as a broker: its epoch, lease and tasks."""

    broker: BrokerId
    epoch: int
    lease: Lease
    tasks: tuple[asyncio.Task[None], ...]


class ClusterState:
    """The newest image, and commits that change it. Owned by the event loop it was opened on.

    `on_lost` receives the error: StoreUnavailable when the store does not respond (it is tried
    again), LeaseLost when this process is no longer the broker it registered as (it may register
    again), any other when a task of this object has failed for good. Without `follower` the image
    no longer changes: users of the image have to watch that task.
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
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals()
        self._registration: _Registration | None = None
        self._is_leaving = False
        self._self: BrokerImage | None = (
            None  # the broker as which this process last tried to register
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._following = StoreFollowing(store, lambda: self.image, self._advance, on_lost)
        self.follower = self._spawn(self._following.run(), "ottla-cluster-follow")

    @classmethod
    async def open(
        cls,
        store: CoordinationStore,
        rng: random.Random,
        *,
        on_lost: Callable[[BaseException], None],
        config: BrokerConfig | None = None,
    ) -> "ClusterState":
        """Read the store and begin to follow it; the first process creates the cluster id."""
        image = await open_image(store, lambda: draw_uuid(rng))
        return cls(store, rng, image, config or BrokerConfig(), on_lost)

    async def close(self) -> None:
        """Unregister at once and stop following. The store stays open: the caller owns it."""
        registration, self._registration = self._registration, None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if registration is not None:
            with contextlib.suppress(StoreUnavailable):  # then the lease expires by itself
                await registration.lease.revoke()

    @property
    def is_registered(self) -> bool:
        """True if this process is registered as a broker, as far as it knows."""
        return self._registration is not None

    @property
    def lease_left_s(self) -> float:
        """Seconds for which the registration is certain to last; 0 without one."""
        return 0.0 if self._registration is None else self._registration.lease.left_s

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(old, new)` on every change, before other code sees the new image."""
        self._subscribers.append(callback)

    def brokers_to_ask(self) -> list[BrokerImage]:
        """The brokers in Metadata responses. Never empty: a client could not connect any more.

        If no broker is alive, it is this one, which can at least receive the next request.
        """
        alive = [broker for _, broker in sorted(self.image.brokers.items())]
        return alive or [one for one in (self._self,) if one is not None]

    @property
    def changes_max(self) -> int:
        """The changes worth deciding about at a time: one more than a commit takes at most."""
        return self._store.limits.writes + 1

    def fits(self, image: ClusterImage, changes: Sequence[Change]) -> bool:
        """True if all of the changes, decided on this image, fit into one commit."""
        return fits(image, changes, self._store.limits)

    def draw_uuid(self) -> Uuid:
        """A random id."""
        return draw_uuid(self._rng)

    def draw_start(self) -> int:
        """A random start for the placement of a topic's replicas."""
        return self._rng.randrange(1 << 16)

    async def commit(self, decide: Decide[Result]) -> Result:
        """Commit a decision on the newest image, atomically; the image has its changes on return.

        `decide` is called again after a conflict with another process. Its ApiError passes
        through, once it is certain not to come from an outdated image.
        """
        try:
            async with _bounded():
                decision, _ = await self._commit(decide, leases={})
        except StoreUnavailable as problem:
            raise StoreUnavailable(
                f"nothing can be changed while the coordination store is away: {problem}"
            ) from problem
        return decision.result

    async def commit_surely(self, decide: Decide[Result]) -> Result:
        """As `commit`, but returns only when it is known what became of the changes.

        If the store does not respond, the same commit is sent again until it does: whatever it
        says then, no copy of it can take effect any more.
        """
        decision, _ = await self._commit(decide, leases={}, is_repeated=True)
        return decision.result

    async def catch_up(self) -> None:
        """Return when the image has every change committed before this call.

        The server's revision may be that of a change which no watch of ours reports. So if the
        image has not reached it soon, everything is read.
        """
        async with _bounded():
            revision = (await self._store.get(CLUSTER_KEY)).revision
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._reach(revision)
                    return
            await self._following.read_all()

    async def stored_partition(self, tp: TopicPartition) -> PartitionImage | None:
        """A partition as the store has it now, which the image may not show yet."""
        topic = self.image.topics.get(tp.topic)
        if topic is None:
            return None
        key = partition_key(topic.id, tp.partition)
        for entry in (await self._store.get(key)).entries:
            try:
                stored = layout.decode(key, entry.value)
            except layout.ValueDamaged as damage:
                raise StoreUnavailable(str(damage)) from damage
            assert isinstance(stored, PartitionImage), key
            return stored
        return None

    async def register(
        self,
        broker: BrokerImage,
        *,
        ttl_ms: int = LEASE_TTL_MS,
        prepare: Callable[[int], Awaitable[None]] | None = None,
    ) -> int:
        """Register as this broker, replacing an earlier registration. Returns the broker epoch.

        In two steps: first it is known and counts as dead, so that an earlier process of its id
        leads nothing any more, and other brokers take over what they can; then it is ready, and
        may lead in new leader epochs. In between `prepare` is called with the epoch.
        """
        assert self._registration is None, "a process registers as one broker"
        self._self = broker
        lease = await Lease.grant(self._store, ttl_ms)
        leases = {broker_key(broker.id): lease.id, ready_key(broker.id): lease.id}
        renewing = self._spawn(self._keep_alive(lease), "ottla-cluster-lease")
        try:
            async with _bounded():
                _, epoch = await self._commit(lambda image: register_broker(image, broker), leases)
            if self.image.brokers:  # without, no broker can take over
                await self.settle()
            if prepare is not None:
                await prepare(epoch)
            limit = self.changes_max
            await self.commit(lambda image: begin_terms(image, broker.id, epoch, limit))
            async with _bounded():
                await self._commit(lambda image: note_ready(image, broker.id, epoch), leases)
            await self.settle()
        except BaseException:
            renewing.cancel()
            with contextlib.suppress(StoreUnavailable):
                await lease.revoke()
            raise
        settling = Settling(self, broker.id, self._config, self._on_lost)
        tasks = [renewing, self._spawn(settling.run(), "ottla-cluster-settling")]
        if self._store.can_fall_silent:
            tasks.append(self._spawn(self._following.beat(broker.id), "ottla-cluster-beat"))
        self._registration = _Registration(broker.id, epoch, lease, tuple(tasks))
        self._check_registration()
        return epoch

    async def resign(self) -> None:
        """Let others lead what this broker leads, where they can; it stays registered."""
        if (registration := self._registration) is None:
            return
        self._is_leaving = True
        for task in registration.tasks[1:]:  # all but the lease
            task.cancel()
        await self.commit(lambda image: note_leaving(image, registration.broker))
        await self.settle()

    async def step_down(self) -> None:
        """End this broker's registration, and have others lead; it may register again."""
        if (registration := self._registration) is None:
            return
        self._registration = None
        for task in registration.tasks:
            task.cancel()
        broker, epoch = registration.broker, registration.epoch
        await self._remove_dead(lambda image: note_dead(image, broker, epoch))

    async def suspect(self, broker: BrokerId, epoch: int, by: BrokerId, stale: Revision) -> None:
        """End the registration of a broker that `by` finds gone, if others agree or need not."""
        await self._remove_dead(lambda image: suspect(image, broker, epoch, by, stale))

    async def _remove_dead(self, decide: Decide[None]) -> None:
        try:
            await self.commit(decide)
            await self.settle()
        except ApiError as problem:  # then its lease ends by itself
            self._on_lost(problem)

    async def settle(self) -> None:
        """Give every partition a leader among the live brokers, where there can be one."""
        await self.commit(self.decide_leaders)

    def decide_leaders(self, image: ClusterImage) -> Decision[None]:
        """Leaders and ISRs among the live brokers; one that has just come leads only if it must."""
        newcomers = self._arrivals.recent(self._loop.time())
        return settle_leaders(image, self._config, self.changes_max, newcomers)

    async def allocate_producer_ids(self, count: int = 1000) -> range:
        """A block of producer ids, none of which is ever allocated twice."""
        from ottla.cluster.producer_ids import allocate_producer_ids  # noqa: PLC0415

        for _ in range(ATTEMPTS_MAX):
            with contextlib.suppress(Conflict):
                return await allocate_producer_ids(self._store, count)
        raise _too_busy()

    # Deciding

    async def _commit(
        self, decide: Decide[Result], leases: Mapping[str, LeaseId], *, is_repeated: bool = False
    ) -> tuple[Decision[Result], Revision]:
        """Changes that do not fit into one commit are decided about again after the first part."""
        conflicts = 0
        while conflicts < ATTEMPTS_MAX:
            self._following.check_not_restored()
            decision = await self._decide(decide)
            if not decision.changes:
                return decision, self.image.revision
            changes = fitting(self.image, decision.changes, self._store.limits)
            conditions = compares(self.image, changes)
            try:
                written = writes(changes, leases)
                self._following.note_writing(written, changes)
                revision = await self._send(written, conditions, is_repeated=is_repeated)
            except Conflict:
                conflicts += 1
                await self._wait_conflict_seen(conditions)
                continue
            await self._reach(revision)
            self._following.forget_written()
            if len(changes) == len(decision.changes):
                return decision, revision
        raise _too_busy()

    async def _send(
        self, written: Sequence[Write], conditions: Sequence[Compare], *, is_repeated: bool
    ) -> Revision:
        while True:
            try:
                return await self._store.commit(written, conditions)
            except StoreUnavailable as problem:
                if not is_repeated:
                    raise
                self._on_lost(problem)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _decide(self, decide: Decide[Result]) -> Decision[Result]:
        """A decision on `self.image` as it is on return.

        An error, or a decision without changes, is not checked by the store's compare, so it has
        to be made on an image that is known to be the newest.
        """
        with contextlib.suppress(ApiError):
            decision = decide(self.image)
            if decision.changes:
                return decision
        await self.catch_up()
        return decide(self.image)

    async def _wait_conflict_seen(self, conditions: Sequence[Compare]) -> None:
        """After a conflict: wait until the image has the change that caused it."""
        while all(self.image.mod_revision(one.key) == one.mod_revision for one in conditions):
            await self.next_image()

    async def _reach(self, revision: Revision) -> None:
        """Return when the image has this revision, whether or not the watch reports it."""
        timeout_s = _OWN_COMMIT_S if self._store.can_fall_silent else None
        while self.image.revision < revision:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.next_image()
            except TimeoutError:
                await self._try_read_all()

    async def _try_read_all(self) -> None:
        """Read everything if the store responds: the caller waits, and knows what was committed."""
        try:
            await self._following.read_all()
        except StoreRestored:
            raise
        except StoreUnavailable as problem:
            self._on_lost(problem)

    async def next_image(self) -> None:
        """Return when the image has changed; raises StoreUnavailable if it no longer does."""
        if self.follower.done():
            raise StoreUnavailable("this broker no longer follows the cluster: restart it")
        await self._advanced.wait()

    def _advance(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        assert old.revision <= image.revision, (
            f"revision {image.revision} is older than the image's"
        )
        self._arrivals.note_image(old, image, self._loop.time())
        for callback in self._subscribers:
            callback(old, image)
        self._check_registration()
        self._wake()

    def _wake(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()

    # Registration

    async def _keep_alive(self, lease: Lease) -> None:
        """Renew a lease. Its key in the image says whether this broker is registered.

        A store that was away keeps leases for longer, and etcd may report the renewal of a
        lease that it has revoked as a success.
        """
        while True:
            await asyncio.sleep(lease.ttl_s / KEEP_ALIVES_PER_TTL)
            if self._following.is_deaf:
                continue
            try:
                await lease.renew()
            except StoreUnavailable as problem:
                self._on_lost(problem)
            except LeaseLost as problem:
                with contextlib.suppress(ApiError):  # the image shows it, most likely
                    await self.catch_up()
                self._lose_registration(problem)
                return

    def _check_registration(self) -> None:
        if (registration := self._registration) is None or self._is_leaving:
            return
        broker, image = registration.broker, self.image
        registered = image.registered.get(broker)
        if registered is not None and registered.epoch != registration.epoch:
            self._lose_registration(LeaseLost(f"another process registered as broker {broker}"))
        elif broker not in image.brokers:
            self._lose_registration(LeaseLost(f"the lease of broker {broker} expired"))

    def _lose_registration(self, problem: LeaseLost) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            for task in registration.tasks:
                task.cancel()
            self._on_lost(problem)
            self._wake()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Report a failed task; a broker that no longer follows lets its lease expire."""
        self._tasks.remove(task)
        self._wake()
        if not task.cancelled() and (problem := task.exception()) is not None:
            for other in self._registration.tasks if self._registration else ():
                other.cancel()
            self._on_lost(problem)


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            yield
    except TimeoutError:
        raise _too_busy() from None


def _too_busy() -> RequestTimedOut:
    return RequestTimedOut(
        "the coordination store did not take the change in time: check whether it was made, then"
        " try again"
    )
