"""The data directory of a stopped broker: its strays, and a store that the broker refuses.

Everything here works under the directory's lock, at the request of an operator who has seen the
plan. No record is removed but by `purge`.
"""

import base64
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.broker.environment import open_sqlite
from ottla.broker.meta_properties import (
    IDENTITY_FILE,
    Identity,
    MetaProperties,
    check_identity,
    read_identity,
)
from ottla.clock import SystemClock
from ottla.cluster import layout
from ottla.cluster.controller.leaders import raise_epochs
from ottla.cluster.controller.topics import FoundPartition, adopt_partition
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import (
    CoordinationStore,
    Delete,
    Put,
    Revision,
    Snapshot,
    Write,
)
from ottla.cluster.store_sqlite import STORE_FILES, SqliteStore
from ottla.cluster.values import CLUSTER_KEY, Change, ClusterId, ClusterIdentity
from ottla.config import BrokerConfig
from ottla.coordinator.runtime.internal_topics import INTERNAL_TOPICS, internal_config
from ottla.errors import ApiError, UsageRefused
from ottla.model import (
    NO_EPOCH,
    BrokerId,
    LeaderEpoch,
    Position,
    ProducerId,
    TopicPartition,
    Uuid,
)
from ottla.replication.strays import judge
from ottla.storage.batch_scan import intact_batches
from ottla.storage.epochs import Epochs, EpochsDamaged
from ottla.storage.files import OsFiles
from ottla.storage.found_logs import Fate
from ottla.storage.log_dir import LogDir
from ottla.storage.names import METADATA_FILE, StrayName, parse_stray
from ottla.storage.partition_metadata import MetadataDamaged, decode_metadata
from ottla.storage.recovery import EPOCHS_FILE
from ottla.storage.segment import LOG

DROPPED_FILE: Final = "dropped-store-values.jsonl"
_PRODUCER_IDS_SKIPPED: Final = 1_000_000_000  # more than a store that went back can have given out
# A topic that is created again has lost its settings: its records must not expire meanwhile.
_KEEP_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class Stray:
    """A log that was set aside; `problem` is the reason why it cannot be adopted."""

    directory: str
    name: StrayName
    topic_id: Uuid | None
    size_bytes: int
    problem: str | None = None


class Strays:
    """The strays of one directory; made by `open_strays`."""

    def __init__(self, log_dir: LogDir, state: ClusterState, identity: Identity) -> None:
        self._files = OsFiles()
        self._log_dir = log_dir
        self._state = state
        self._node_id = identity.node_id

    def found(self) -> list[Stray]:
        """All strays, each with the problem that keeps it from being adopted, if any."""
        found = [self._read(directory) for directory in self._log_dir.directories.strays()]
        return [self._judged(stray) for stray in found]

    def find(self, directories: Sequence[str]) -> list[Stray]:
        """The strays of these names, or UsageRefused."""
        known = {stray.directory: stray for stray in self.found()}
        if unknown := [name for name in directories if name not in known]:
            path = self._log_dir.path
            raise UsageRefused(
                f"there is no stray {unknown[0]!r}: `ottla log strays list {path}` shows them"
            )
        return [known[name] for name in directories]

    async def adopt(self, stray: Stray, topic: str | None = None) -> TopicPartition:
        """Make a stray a log again, under its own topic's name or another.

        Raises an ApiError or UsageRefused, and nothing has changed.

        The topic is committed before the directory gets its name: a crash in between leaves an
        empty log to the next start, and the stray to the next attempt.
        """
        found = self._found(stray, topic)
        self._log_dir.directories.check_adoptable(found.tp)
        await self._state.commit(lambda image: adopt_partition(image, found))
        self._log_dir.adopt_stray(stray.directory, found.tp)
        return found.tp

    def purge(self, stray: Stray) -> None:
        """Remove a stray and all its records for good."""
        self._log_dir.directories.purge_stray(stray.directory)

    def _read(self, directory: str) -> Stray:
        path = self._log_dir.path / directory
        name = parse_stray(directory)
        assert name is not None, f"{directory} was listed as a stray"
        size_bytes = sum(entry.size_bytes for entry in self._files.list(path))
        try:
            data = self._files.read_whole(path / METADATA_FILE)
            return Stray(directory, name, decode_metadata(data), size_bytes)
        except (FileNotFoundError, MetadataDamaged):
            return Stray(directory, name, None, size_bytes)

    def _judged(self, stray: Stray) -> Stray:
        try:
            found = self._found(stray, None)
            adopt_partition(self._state.image, found)
            self._log_dir.directories.check_adoptable(found.tp)
        except (ApiError, UsageRefused) as problem:
            return Stray(
                stray.directory, stray.name, stray.topic_id, stray.size_bytes, str(problem)
            )
        return stray

    def _found(self, stray: Stray, topic: str | None) -> FoundPartition:
        if stray.topic_id is None:
            raise UsageRefused(
                f"{METADATA_FILE} of {stray.directory} does not name a topic: read its records with"
                f" `ottla log dump {self._log_dir.path / stray.directory} --records`"
            )
        name = topic or self._name_of(stray)
        directory = self._log_dir.path / stray.directory
        is_internal = name in INTERNAL_TOPICS
        siblings = [self._read(other) for other in self._log_dir.directories.strays()]
        return FoundPartition(
            tp=TopicPartition(name, stray.name.partition),
            topic_id=stray.topic_id,
            broker=self._node_id,
            leader_epoch=LeaderEpoch(max(0, newest_epoch(self._files, directory))),
            partition_count=max(
                other.name.partition + 1 for other in siblings if other.topic_id == stray.topic_id
            ),
            config=internal_config(name, BrokerConfig()) if is_internal else _KEEP_ALL,
            is_internal=is_internal,
        )

    def _name_of(self, stray: Stray) -> str:
        """The topic's name; the directory of a long one has only a part of it."""
        assert stray.topic_id is not None, "a stray without a topic id cannot be adopted"
        known = self._state.image.topic_by_id(stray.topic_id)
        if known is not None and (stray.name.is_cut or known.name == stray.name.topic):
            return known.name
        if stray.name.is_cut:
            raise UsageRefused(
                f"the name of the topic of {stray.directory} is cut: give it with --as"
            )
        return stray.name.topic


@asynccontextmanager
async def open_strays(data: Path) -> AsyncIterator[Strays]:
    """The strays of a stopped broker's directory, with its lock held and its store open."""
    files = OsFiles()
    known = _read_known(files, data)
    log_dir = LogDir(files, data)
    try:
        store = await open_sqlite(data, SystemClock())
        try:
            state = await ClusterState.open(
                store, random.SystemRandom(), on_lost=lambda problem: None
            )
            try:
                check_identity(data, known, state.image, known.node_id)
                yield Strays(log_dir, state, known)
            finally:
                await state.close()
        finally:
            await store.close()
    finally:
        log_dir.release()


def _read_known(files: OsFiles, data: Path) -> Identity:
    known = read_identity(files, data)
    if known is None:
        raise UsageRefused(f"{data} is not the data directory of a broker")
    return known


def newest_epoch(files: OsFiles, directory: Path) -> LeaderEpoch:
    """The newest leader epoch of a log, from its checkpoint or its last segment."""
    newest = NO_EPOCH
    with suppress(FileNotFoundError, EpochsDamaged):
        newest = Epochs.decode(files.read_whole(directory / EPOCHS_FILE)).latest
    segments = [entry for entry in files.list(directory) if entry.name.endswith(LOG)]
    for entry in segments if newest == NO_EPOCH else segments[-1:]:
        file = files.open(directory / entry.name)
        for _, fields in intact_batches(file, Position(0), entry.size_bytes, 0):
            newest = max(newest, LeaderEpoch(fields[2]))
    return newest


# A store that the broker refuses


@dataclass(slots=True)
class Acceptance:
    """The plan for accepting a store: sentences for the operator, writes, dropped values."""

    revision: Revision
    sentences: list[str] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    dropped: dict[str, bytes] = field(default_factory=dict)


class DoubtfulStore:
    """A store that contradicts the data directory, so that a broker refuses it."""

    def __init__(
        self, data: Path, log_dir: LogDir, store: CoordinationStore, identity: Identity
    ) -> None:
        self._files = OsFiles()
        self._data = data
        self._log_dir = log_dir
        self._store = store
        self._identity = identity

    async def plan(self) -> Acceptance:
        """The plan; nothing changes yet."""
        snapshot = await self._store.range("")
        image, damaged = layout.read_sound(snapshot)
        self._check_cluster(image)
        plan = Acceptance(snapshot.revision)
        plan.sentences.append(
            f"the store is at revision {snapshot.revision}, {self._data} has seen revision"
            f" {self._identity.revision}: from now on the store counts as it is"
        )
        self._plan_damaged(plan, snapshot, damaged)
        self._plan_logs(plan, image)
        self._plan_producer_ids(plan, snapshot, damaged)
        return plan

    async def accept(self, plan: Acceptance) -> None:
        """Carry out the plan. A crash on the way leaves a store that is still refused."""
        if plan.dropped:
            self._keep_dropped(plan.dropped)
        revision = plan.revision
        writes_max = self._store.limits.writes
        for first in range(0, len(plan.writes), writes_max):
            revision = await self._store.commit(plan.writes[first : first + writes_max])
        identity = Identity(self._identity.cluster_id, self._identity.node_id)
        MetaProperties(self._files, self._data, identity, is_written=False).remember(revision)

    def _check_cluster(self, image: ClusterImage) -> None:
        if image.cluster_id not in {"", self._identity.cluster_id}:
            raise UsageRefused(
                f"this is the store of cluster {image.cluster_id}, and {self._data} belongs to"
                f" cluster {self._identity.cluster_id}: bring back the right one"
            )

    def _plan_damaged(
        self, plan: Acceptance, snapshot: Snapshot, damaged: dict[str, layout.ValueDamaged]
    ) -> None:
        values = {entry.key: entry.value for entry in snapshot.entries}
        for key, problem in damaged.items():
            plan.sentences.append(f"{key!r} {problem.reason}: dropped, and kept in {DROPPED_FILE}")
            plan.dropped[key] = values[key]
            if key not in {CLUSTER_KEY, layout.PRODUCER_IDS_KEY}:
                plan.writes.append(Delete(key))
        if CLUSTER_KEY in damaged or CLUSTER_KEY not in values:
            identity = ClusterIdentity(ClusterId(self._identity.cluster_id))
            plan.writes.append(Put(CLUSTER_KEY, layout.encode(CLUSTER_KEY, identity)))

    def _plan_logs(self, plan: Acceptance, image: ClusterImage) -> None:
        verdicts = {
            found.tp: judge(image, self._identity.node_id, found)
            for found in self._log_dir.directories.find_logs(is_checked=self._identity.is_checked)
        }
        aside = sorted(tp for tp, verdict in verdicts.items() if verdict.fate is Fate.SET_ASIDE)
        if aside:
            plan.sentences.append(
                f"the store does not know {', '.join(map(str, aside))}: the next start sets these"
                f" logs aside, and `ottla log strays adopt {self._data} --all` brings them back"
            )
        assigned = {
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if self._identity.node_id in partition.replicas
        }
        if missing := sorted(assigned - verdicts.keys()):
            plan.sentences.append(
                f"there is no log of {', '.join(map(str, missing))}: the next start makes an empty"
                " one, which begins behind what checkpoints know of it"
            )
        opened = [tp for tp, verdict in verdicts.items() if verdict.fate is Fate.OPEN]
        epochs = {tp: newest_epoch(self._files, self._data / str(tp)) for tp in opened}
        raised = raise_epochs(image, epochs).changes
        plan.writes += [_put(change) for change in raised]

    def _plan_producer_ids(
        self, plan: Acceptance, snapshot: Snapshot, damaged: dict[str, layout.ValueDamaged]
    ) -> None:
        first = ProducerId(0)
        for entry in snapshot.entries:
            if entry.key == layout.PRODUCER_IDS_KEY and entry.key not in damaged:
                first = layout.decode_next_producer_id(entry.value, is_checked=False)
        value = layout.encode_next_producer_id(ProducerId(first + _PRODUCER_IDS_SKIPPED))
        plan.writes.append(Put(layout.PRODUCER_IDS_KEY, value))
        plan.sentences.append(
            f"producer ids go on {_PRODUCER_IDS_SKIPPED} later, so that none is given out twice"
        )

    def _keep_dropped(self, dropped: dict[str, bytes]) -> None:
        lines = (
            json.dumps({"key": key, "value": base64.b64encode(value).decode()}) + "\n"
            for key, value in dropped.items()
        )
        with (self._data / DROPPED_FILE).open("a") as file:
            file.writelines(lines)


def _put(change: Change) -> Put:
    assert change.value is not None, "epochs are raised by values, not by deletions"
    return Put(change.key, layout.encode(change.key, change.value))


@asynccontextmanager
async def open_doubtful(data: Path, node_id: BrokerId) -> AsyncIterator[DoubtfulStore]:
    """A store in any state that SQLite can read; a missing one is created."""
    files = OsFiles()
    store_path = data / STORE_FILES[0]
    identity = _read_doubtful_identity(files, data)
    has_store = store_path.exists() and store_path.stat().st_size > 0
    if identity is None and not has_store:
        raise UsageRefused(f"{data} has neither a store nor a {IDENTITY_FILE}: nothing to accept")
    if not has_store and (data / STORE_FILES[1]).exists():
        raise UsageRefused(
            f"{data / STORE_FILES[1]} exists without {STORE_FILES[0]}: restore that file, or remove"
            " this one as well"
        )
    log_dir = LogDir(files, data)
    try:
        store = await SqliteStore.open(store_path, SystemClock())
        try:
            if identity is None:
                image, _ = layout.read_sound(await store.range(""))
                if not image.cluster_id:
                    raise UsageRefused(f"neither the store nor {IDENTITY_FILE} names the cluster")
                identity = Identity(image.cluster_id, node_id)
            yield DoubtfulStore(data, log_dir, store, identity)
        finally:
            await store.close()
    finally:
        log_dir.release()


def _read_doubtful_identity(files: OsFiles, data: Path) -> Identity | None:
    """The identity in `meta.properties`; None if the file is missing or damaged."""
    try:
        return Identity.decode(files.read_whole(data / IDENTITY_FILE))
    except FileNotFoundError:
        return None
