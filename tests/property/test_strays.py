"""Whatever happens to the store, a log is removed only if a tombstone names its topic's id."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes import build
from fakes.cluster_images import cluster
from fakes.memory_files import MemoryFiles
from ottla.cluster.controller import topics as controller
from ottla.cluster.controller.topics import NewTopic
from ottla.cluster.store import Revision
from ottla.cluster.values import Change
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ApiError
from ottla.model import BrokerId, Offset, TopicPartition, Uuid
from ottla.replication.strays import expected_id, judge
from ottla.storage.log_dir import LogDir
from ottla.storage.names import METADATA_FILE

ROOT = Path("/data")
BROKER = BrokerId(0)
NAMES = st.sampled_from(["a", "b", "a-0"])


class StraysMachine(RuleBasedStateMachine):
    """A store that is changed, copied and restored, and the disk of one broker that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = Random(1)
        self.files = MemoryFiles()
        self.image = cluster(BROKER)
        self.copies = [self.image]
        self.written: dict[Uuid, set[bytes]] = {}  # what was put into the logs of each topic
        self.known_ends: dict[tuple[TopicPartition, Uuid], Offset] = {}
        self.log_dir = LogDir(self.files, ROOT)
        self._open()

    def _open(self) -> None:
        self._bury()
        self.log_dir.open_logs(
            lambda tp: TopicConfig(),
            build.NOW_MS,
            judge=partial(judge, self.image, BROKER),
            expected=partial(expected_id, self.image, BROKER),
        )
        self.known_ends = {
            (tp, topic_id): end
            for (tp, topic_id), end in self.known_ends.items()
            if self.log_dir.topic_ids.get(tp) == topic_id  # else it was set aside
        }
        self._make_missing()

    def _make_missing(self) -> None:
        for topic in self.image.topics.values():
            for index in range(len(topic.partitions)):
                tp = TopicPartition(topic.name, index)
                if tp not in self.log_dir.logs:
                    self.log_dir.create_log(tp, topic.id, TopicConfig(), build.NOW_MS)

    def _commit(self, changes: Iterable[Change]) -> None:
        self.image = self.image.apply(changes, Revision(self.image.revision + 1))
        self._bury()

    def _bury(self) -> None:
        """What was written to topics that the store remembers deleting may go."""
        for topic_id in self.image.tombstones:
            self.written.pop(topic_id, None)

    @rule(name=NAMES, count=st.integers(1, 2))
    def create(self, name: str, count: int) -> None:
        wanted = NewTopic(name=name, partition_count=count, replication_factor=1)
        try:
            decision = controller.create_topic(
                self.image,
                wanted,
                BrokerConfig(),
                topic_id=Uuid(self.rng.randbytes(16)),
                start=0,
            )
        except ApiError:
            return
        self._commit(decision.changes)
        self._make_missing()

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        for tp, log in self.log_dir.logs.items():
            if tp.topic == name:
                first = Offset(build.append(log, value=self.rng.randbytes(8)))
                log.flush()
                data = log.read(first, log.end_offset, 1 << 20, at_least_one=True)
                assert data is not None
                written = self.written.setdefault(self.log_dir.topic_ids[tp], set())
                written.add(log.read_bytes(data)[-20:])

    @rule(name=NAMES, is_removed=st.booleans())
    def delete(self, name: str, is_removed: bool) -> None:
        """A topic is deleted; the broker may be killed before it has removed the logs."""
        if name not in self.image.topics:
            return
        topic = self.image.topics[name]
        self._commit(controller.delete_topic(self.image, name, BrokerConfig()).changes)
        if not is_removed:
            self.kill()
            return
        for tp in list(self.log_dir.logs):
            if self.log_dir.topic_ids[tp] == topic.id:
                self.log_dir.delete_log(tp, self.rng)

    @rule()
    def report(self) -> None:
        """The broker says which deleted topics it has no logs of; the tombstones go."""
        here = set(self.log_dir.topic_ids.values())
        gone = [one for one in self.image.tombstones if one not in here]
        self._commit(controller.logs_removed(self.image, BROKER, gone).changes)

    @rule()
    def copy_store(self) -> None:
        self.copies.append(self.image)

    @rule(data=st.data())
    def restore_store(self, data: st.DataObject) -> None:
        """An operator brings back an older store, and accepts it."""
        self.image = data.draw(st.sampled_from(self.copies))
        self.kill()

    @rule(data=st.data(), is_gone=st.booleans())
    def damage_metadata(self, data: st.DataObject, is_gone: bool) -> None:
        logs = sorted(self.log_dir.logs)
        if not logs:
            return
        path = ROOT / str(data.draw(st.sampled_from(logs))) / METADATA_FILE
        if is_gone:
            self.files.unlink(path)
        else:
            self.files.create(path).append(b"rust")
        self.kill()

    @rule()
    def checkpoint(self) -> None:
        """From now on the ends of all logs are known, whatever becomes of their directories."""
        self.log_dir.checkpoint()
        for tp, log in self.log_dir.logs.items():
            self.known_ends[tp, self.log_dir.topic_ids[tp]] = log.end_offset

    @rule(data=st.data())
    def lose_directory(self, data: st.DataObject) -> None:
        """The directory of a log is gone, with everything in it."""
        logs = sorted(self.log_dir.logs)
        if not logs:
            return
        directory = ROOT / str(data.draw(st.sampled_from(logs)))
        lost = self._records_in(directory)
        for entry in self.files.list(directory):
            self.files.unlink(directory / entry.name)
        self.files.remove_dir(directory)
        for contents in self.written.values():
            contents.difference_update([one for one in contents if one in lost])
        self.kill()

    def _records_in(self, directory: Path) -> bytes:
        return b"".join(
            self.files.read_whole(directory / entry.name)
            for entry in self.files.list(directory)
            if entry.name.endswith(".log")
        )

    @rule()
    def kill(self) -> None:
        self.files = self.files.kill()
        self.log_dir = LogDir(self.files, ROOT)
        self._open()

    @invariant()
    def nothing_is_gone_that_nobody_deleted(self) -> None:
        directories = [entry.name for entry in self.files.list(ROOT) if entry.is_dir]
        on_disk = b"".join(self._records_in(ROOT / name) for name in directories)
        for contents in self.written.values():
            assert all(content in on_disk for content in contents)

    @invariant()
    def every_partition_has_a_log_that_is_its_own(self) -> None:
        for topic in self.image.topics.values():
            for index in range(len(topic.partitions)):
                tp = TopicPartition(topic.name, index)
                assert self.log_dir.topic_ids[tp] == topic.id
                known_end = self.known_ends.get((tp, topic.id), Offset(0))
                assert self.log_dir.logs[tp].end_offset >= known_end, "no offset is used twice"


TestStrays = StraysMachine.TestCase
TestStrays.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
