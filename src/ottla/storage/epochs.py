"""Leader epochs and their first offsets, by which replicas find where their logs differ.

Kept in the entries of `log-states`, in the text format of Kafka's `leader-epoch-checkpoint`. Every
batch carries its leader's epoch, so this is a cache too: it is checked against the log, and rebuilt
from the batches when it does not fit them.
"""

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from ottla.model import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

_VERSION: Final = 0


class EpochStart(NamedTuple):
    """A leader's first offset."""

    epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """The end of an epoch, or of the largest known epoch below it."""

    epoch: LeaderEpoch
    end_offset: Offset


class EpochOrder:
    """The epochs that batches of a log have, as its checkpoint knew them at one time.

    A batch's CRC does not cover its epoch. But epochs rise, and the checkpoint says where each
    begins: a batch that contradicts it, or the batch before, is not what was written.
    """

    def __init__(self, starts: "list[EpochStart]") -> None:
        self._epochs = [one.epoch for one in starts]
        self._starts = [one.start_offset for one in starts]
        self._highest = int(NO_EPOCH)

    def admits(self, offset: int, epoch: int) -> bool:
        """True if a batch, behind those that were admitted before, can have this epoch."""
        if epoch == NO_EPOCH:  # a client's or Kafka's, from before there were any
            return True
        known = bisect_right(self._starts, offset)
        is_right = epoch >= self._highest and (not known or epoch == self._epochs[known - 1])
        if is_right:
            self._highest = epoch
        return is_right


class EpochsDamaged(Exception):
    """The stored epochs are not what they should be: rebuild them from the log."""


class Epochs:
    """Epochs and their first offsets, both rising. Owned by one log."""

    __slots__ = ("_encoded", "_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        self.latest = NO_EPOCH  # read on every append
        self._encoded: bytes | None = None  # None as long as it is not asked for

    def entries(self) -> list[EpochStart]:
        return [EpochStart(*entry) for entry in zip(self._epochs, self._starts, strict=True)]

    def note(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """A batch of `epoch` begins at `start_offset`; what it contradicts is forgotten."""
        if epoch == self.latest or epoch < 0:
            return
        self._encoded = None
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which the record at `offset` was written."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else NO_EPOCH

    def end_of(self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """The end of the largest known epoch not above `epoch` (KIP-279)."""
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return EpochEnd(NO_EPOCH, NO_OFFSET)
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end)
        above = bisect_right(self._epochs, epoch)
        floor = self._epochs[above - 1] if above else epoch
        return EpochEnd(floor, self._starts[above])

    def truncate_end(self, end_offset: Offset) -> None:
        """The log now ends at `end_offset`: forget the epochs that began there or later."""
        self._encoded = None
        keep = bisect_left(self._starts, end_offset)
        del self._epochs[keep:], self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH

    def truncate_start(self, start_offset: Offset) -> None:
        """The log now starts at `start_offset`: forget the epochs that ended before it."""
        passed = bisect_right(self._starts, start_offset) - 1
        if passed >= 0:
            self._encoded = None
            del self._epochs[:passed], self._starts[:passed]
            self._starts[0] = start_offset

    def encode(self) -> bytes:
        """The content of a `leader-epoch-checkpoint`; made once for as long as nothing changes."""
        if self._encoded is None:
            lines = [f"{epoch} {start}" for epoch, start in self.entries()]
            self._encoded = "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()
        return self._encoded

    @classmethod
    def decode(cls, data: bytes) -> "Epochs":
        """The inverse of `encode`, or `EpochsDamaged`."""
        try:
            version, count, *lines, end = data.decode("ascii").split("\n")
            entries = [
                (int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines)
            ]
        except ValueError:
            raise EpochsDamaged("the leader epoch checkpoint cannot be read") from None
        if version != str(_VERSION) or end or count != str(len(lines)):
            raise EpochsDamaged("the leader epoch checkpoint is not whole")
        epochs, last_start = cls(), -1
        for epoch, start in entries:
            if epoch <= epochs.latest or start <= last_start:
                raise EpochsDamaged("the leader epoch checkpoint does not rise")
            epochs._epochs.append(LeaderEpoch(epoch))
            epochs._starts.append(Offset(start))
            epochs.latest, last_start = LeaderEpoch(epoch), start
        return epochs
