"""Events of a data directory that concern its owner."""

from typing import Protocol

from ottla.model import TopicPartition
from ottla.storage.segments import Discarded


class LogDirListener(Protocol):
    """The owner of a data directory, as far as the directory calls it. On the owner's thread."""

    def note_offline(self, reason: str) -> None:
        """The disk failed: no log of the directory can be read or written any more."""
        ...

    def note_durable(self, tp: TopicPartition) -> None:
        """A log's durable offset has risen."""
        ...

    def note_crowded(self, tp: TopicPartition) -> None:
        """A log should be flushed soon."""
        ...

    def note_start(self, tp: TopicPartition) -> None:
        """A log begins at a higher offset now."""
        ...

    def note_damaged(self, tp: TopicPartition) -> None:
        """Records of a log are corrupt on disk, and were not known to be."""
        ...

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        """A log's epochs have to be read off its batches. True if the owner sees to that."""
        ...

    def discard(self, discarded: Discarded) -> None:
        """Remove a file of a deleted segment, now or later."""
        ...


class SilentDirListener:
    """A listener that ignores all events, and removes files at once: for tools and tests."""

    def note_offline(self, reason: str) -> None:
        return

    def note_durable(self, tp: TopicPartition) -> None:
        return

    def note_crowded(self, tp: TopicPartition) -> None:
        return

    def note_start(self, tp: TopicPartition) -> None:
        return

    def note_damaged(self, tp: TopicPartition) -> None:
        return

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        return False

    def discard(self, discarded: Discarded) -> None:
        discarded.remove()
