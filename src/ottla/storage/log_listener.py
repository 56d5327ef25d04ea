"""Events of a log that concern its owner: progress, failure, damage, files to remove."""

from typing import Protocol

from ottla.model import TopicPartition
from ottla.storage.damages import CorruptRange
from ottla.storage.segments import Discarded


class LogListener(Protocol):
    """The owner of logs, as far as a log calls it. Called on the owner's thread."""

    def note_durable(self, tp: TopicPartition) -> None:
        """The log's durable offset has risen."""
        ...

    def note_crowded(self, tp: TopicPartition) -> None:
        """The log should be flushed soon: segments stay open until then."""
        ...

    def note_start(self, tp: TopicPartition) -> None:
        """The log begins at a higher offset now."""
        ...

    def note_failed(self, tp: TopicPartition, error: OSError) -> None:
        """The log's disk failed. The log is offline already."""
        ...

    def note_damaged(self, tp: TopicPartition, damage: CorruptRange) -> None:
        """Records of the log are corrupt on disk, and were not known to be."""
        ...

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        """Noted epochs contradict the batches. True if the owner has all of them read later, by
        `LogRepair.begin_epoch_scan`; else the log reads them at once.
        """
        ...

    def before_truncate(self, tp: TopicPartition) -> None:
        """The log's durable offset was lowered: store that recovery point before returning."""
        ...

    def discard(self, discarded: Discarded) -> None:
        """Remove a file of a deleted segment, now or later."""
        ...


class SilentListener:
    """A listener that ignores all events, and removes files at once: for tools and tests."""

    def note_durable(self, tp: TopicPartition) -> None:
        return

    def note_crowded(self, tp: TopicPartition) -> None:
        return

    def note_start(self, tp: TopicPartition) -> None:
        return

    def note_failed(self, tp: TopicPartition, error: OSError) -> None:
        return

    def note_damaged(self, tp: TopicPartition, damage: CorruptRange) -> None:
        return

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        return False

    def before_truncate(self, tp: TopicPartition) -> None:
        return

    def discard(self, discarded: Discarded) -> None:
        discarded.remove()
