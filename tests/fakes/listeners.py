"""Listeners whose reactions a test chooses; the others do nothing."""

from collections.abc import Callable

from ottla.model import TopicPartition
from ottla.storage.damages import CorruptRange
from ottla.storage.segments import Discarded


class FakeLogListener:
    """A `LogListener`. `damages` has what was reported, `discarded` the files not yet removed."""

    def __init__(self) -> None:
        self.on_durable: Callable[[], object] = _do_nothing
        self.on_crowded: Callable[[], object] = _do_nothing
        self.on_start: Callable[[], object] = _do_nothing
        self.on_truncate: Callable[[], object] = _do_nothing
        self.damages: list[CorruptRange] = []
        self.has_epochs_read = False  # whether `note_epochs_wrong` promises it
        self.discarded: list[Discarded] = []

    def note_durable(self, tp: TopicPartition) -> None:
        self.on_durable()

    def note_crowded(self, tp: TopicPartition) -> None:
        self.on_crowded()

    def note_start(self, tp: TopicPartition) -> None:
        self.on_start()

    def note_failed(self, tp: TopicPartition, error: OSError) -> None:
        return

    def note_damaged(self, tp: TopicPartition, damage: CorruptRange) -> None:
        self.damages.append(damage)

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        return self.has_epochs_read

    def before_truncate(self, tp: TopicPartition) -> None:
        self.on_truncate()

    def discard(self, discarded: Discarded) -> None:
        self.discarded.append(discarded)


class FakeDirListener:
    """A `LogDirListener` that keeps what it was notified of."""

    def __init__(self) -> None:
        self.offline: list[str] = []
        self.durable: list[TopicPartition] = []

    def note_offline(self, reason: str) -> None:
        self.offline.append(reason)

    def note_durable(self, tp: TopicPartition) -> None:
        self.durable.append(tp)

    def note_start(self, tp: TopicPartition) -> None:
        return

    def note_damaged(self, tp: TopicPartition) -> None:
        return

    def note_epochs_wrong(self, tp: TopicPartition) -> bool:
        return False

    def note_crowded(self, tp: TopicPartition) -> None:
        return

    def discard(self, discarded: Discarded) -> None:
        discarded.remove()


def _do_nothing() -> None:
    return
