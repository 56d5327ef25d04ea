"""Mappings of which an image shares all that has not changed with the image before it."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from ottla.cluster.store import NEVER, Revision

K = TypeVar("K")
V = TypeVar("V")


class CopiedMapping(Generic[K, V]):
    """A mapping of an image, copied before its first write."""

    __slots__ = ("_copy", "now")

    def __init__(self, original: Mapping[K, V]) -> None:
        self.now = original
        self._copy: dict[K, V] | None = None

    def writable(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self.now)
            self.now = self._copy
        return self._copy


class KeyRevisions(Mapping[str, Revision]):
    """The revisions of all keys of a store, in a part for each of its directories.

    A commit copies the parts that it changes, not the keys of all partitions of the cluster.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[str, Mapping[str, Revision]] | None = None) -> None:
        self.parts = {} if parts is None else parts

    def __getitem__(self, key: str) -> Revision:
        return self.parts[_directory(key)][key]

    def __iter__(self) -> Iterator[str]:
        for part in self.parts.values():
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def revision_of(self, key: str) -> Revision:
        """The revision that wrote a key; NEVER for one that is not there."""
        part = self.parts.get(_directory(key))
        return NEVER if part is None else part.get(key, NEVER)

    def draft(self) -> "KeyRevisionsDraft":
        """A copy to be changed."""
        return KeyRevisionsDraft(self.parts)


class KeyRevisionsDraft:
    """Changed revisions: each part is copied once, before its first write."""

    __slots__ = ("_copied", "_parts")

    def __init__(self, parts: Mapping[str, Mapping[str, Revision]]) -> None:
        self._parts = CopiedMapping(parts)
        self._copied: dict[str, dict[str, Revision]] = {}

    @property
    def now(self) -> KeyRevisions:
        return KeyRevisions(self._parts.now)

    def put(self, key: str, revision: Revision) -> None:
        self._part(_directory(key))[key] = revision

    def remove(self, key: str) -> None:
        directory = _directory(key)
        if key not in self._parts.now.get(directory, ()):
            return
        part = self._part(directory)
        del part[key]
        if not part:
            del self._parts.writable()[directory]
            del self._copied[directory]

    def _part(self, directory: str) -> dict[str, Revision]:
        part = self._copied.get(directory)
        if part is None:
            part = self._copied[directory] = dict(self._parts.now.get(directory, {}))
            self._parts.writable()[directory] = part
        return part


def _directory(key: str) -> str:
    return key[: key.rfind("/") + 1]
