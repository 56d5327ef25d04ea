"""Order by key: a record is ready when no earlier one of its key is unfinished.

Offsets are added in ascending order, as the log is read, and removed when they are finished. Of
each key the first one may be acquired, new or once more; records without a key always.
"""

from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

from ottla.queues.share_ranges import Range
from ottla.queues.share_state import DeliveryState

WINDOW_RECORDS_MAX: Final = 20_000  # unfinished records whose keys are remembered
_DIGEST_BYTES: Final = 16


def key_digest(key: bytes) -> bytes:
    """Sixteen bytes at most that stand for a key."""
    return key if len(key) <= _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class KeyOrder:
    """The unfinished records of a window by key; `ready` is what may be acquired, or may have been
    a while ago: its user looks at the state of each."""

    __slots__ = ("_keys", "_later", "_queues", "_ready", "scanned_to")

    def __init__(self, start: int) -> None:
        self.scanned_to = start  # offsets below are known
        self._keys: dict[int, bytes] = {}
        self._queues: dict[bytes, list[int]] = {}  # unfinished offsets of each key, ascending
        self._ready: list[int] = []  # a heap
        self._later: list[tuple[int, int]] = []  # a heap: when a wait ends, and the offset

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, offset: int, digest: bytes | None, until_ms: int) -> None:
        """An unfinished record, with a greater offset than all before."""
        self.scanned_to = offset + 1
        if digest is not None:
            queue = self._queues.setdefault(digest, [])
            queue.append(offset)
            self._keys[offset] = digest
            if len(queue) > 1:
                return
        self.push(offset, until_ms)

    def note(self, item: Range) -> None:
        """A range that was acquired, or dropped, is available again or finished."""
        is_available = item.state is DeliveryState.AVAILABLE
        for offset in range(item.start, min(item.end, self.scanned_to)):
            if is_available:
                self.push(offset, item.until_ms)
            else:
                self._finish(offset)

    def is_first(self, offset: int) -> bool:
        """True if no earlier record of the key is unfinished."""
        digest = self._keys.get(offset)
        return digest is None or self._queues[digest][0] == offset

    def pop_ready(self, now_ms: int) -> int | None:
        """The smallest offset that is to be looked at; None if there is none."""
        while self._later and self._later[0][0] <= now_ms:
            heappush(self._ready, heappop(self._later)[1])
        return heappop(self._ready) if self._ready else None

    def push(self, offset: int, until_ms: int = 0) -> None:
        """Have an offset looked at again, when its wait is over."""
        if until_ms:
            heappush(self._later, (until_ms, offset))
        else:
            heappush(self._ready, offset)

    def _finish(self, offset: int) -> None:
        digest = self._keys.pop(offset, None)
        if digest is None:
            return
        queue = self._queues[digest]
        was_first = queue[0] == offset
        queue.remove(offset)
        if not queue:
            del self._queues[digest]
        elif was_first:
            heappush(self._ready, queue[0])
