"""Files in memory that behave like a disk on a bad day.

What was not synced is forgotten when the power is cut, or torn at any byte; names are forgotten
too until their directory is synced; and operations fail on request.
"""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ottla.errors import UsageRefused
from ottla.storage.files import Buffer, DiskSpace, Entry, Lock, StrPath

_CHANGES = frozenset(
    {"append", "create", "rename", "sync", "sync_all", "sync_dir", "truncate", "unlink"}
)


class MachineStopped(BaseException):
    """The machine has stopped in the middle of whatever it was doing."""


@dataclass(eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    modified_ms: int = 0


@dataclass
class _Fault:
    operation: str
    number: int
    after_bytes: int
    suffix: str


class MemoryFile:
    def __init__(self, files: "MemoryFiles", path: Path, inode: _Inode) -> None:
        self._files = files
        self._path = path
        self._inode = inode

    def append(self, data: Buffer) -> None:
        fault = self._files.take_fault("append", self._path)
        if fault is not None:
            self._inode.content += bytes(data)[: fault.after_bytes]
            raise OSError(fault.number, os.strerror(fault.number))
        self._files.counts["append"] += 1
        self._inode.content += data
        self._inode.modified_ms = self._files.now_ms

    def read(self, position: int, size_bytes: int) -> bytes:
        self._files.fail_if_asked("read", self._path)
        self._files.counts["read"] += 1
        self._files.read_bytes[self._path.suffix] += size_bytes
        return bytes(self._inode.content[position : position + size_bytes])

    def truncate(self, size_bytes: int) -> None:
        self._files.fail_if_asked("truncate", self._path)
        del self._inode.content[size_bytes:]

    def sync(self) -> None:
        self._files.fail_if_asked("sync", self._path)
        self._files.counts["sync"] += 1
        self._files.note_sync(self._inode)
        self._inode.synced = bytes(self._inode.content)

    def size_bytes(self) -> int:
        return len(self._inode.content)

    def modified_ms(self) -> int:
        return self._inode.modified_ms

    def fileno(self) -> int:
        return -1


class SyncRound:
    """Syncs that are under way: a power cut may find them done, or not begun."""

    def __init__(self) -> None:
        self.inodes: dict[_Inode, bytes] = {}  # with what was synced before
        self.names: dict[Path, dict[Path, _Inode]] = {}  # of directories, as they were before


class _Names(dict[Path, _Inode]):
    """Files by their paths, and also by their directories."""

    def __init__(self, known: Mapping[Path, _Inode] | None = None) -> None:
        super().__init__()
        self._by_dir: defaultdict[Path, dict[Path, _Inode]] = defaultdict(dict)
        for path, inode in (known or {}).items():
            self[path] = inode

    def __setitem__(self, path: Path, inode: _Inode) -> None:
        super().__setitem__(path, inode)
        self._by_dir[path.parent][path] = inode

    def __delitem__(self, path: Path) -> None:
        super().__delitem__(path)
        del self._by_dir[path.parent][path]

    def within(self, directory: Path) -> dict[Path, _Inode]:
        """The files of one directory."""
        return dict(self._by_dir.get(directory, {}))

    def replace(self, directory: Path, files: Mapping[Path, _Inode]) -> None:
        """Let a directory have these files and no others."""
        for path in self.within(directory):
            del self[path]
        for path, inode in files.items():
            self[path] = inode


class _Directories:
    """Directories, also by those that they are in."""

    def __init__(self, known: Iterable[Path] = ()) -> None:
        self._children: dict[Path, dict[Path, None]] = {}
        for path in known:
            self.add(path)

    def __contains__(self, path: Path) -> bool:
        return path in self._children.get(path.parent, ())

    def __iter__(self) -> Iterator[Path]:
        for children in self._children.values():
            yield from children

    def add(self, path: Path) -> None:
        self._children.setdefault(path.parent, {})[path] = None

    def remove(self, path: Path) -> None:
        del self._children[path.parent][path]

    def within(self, directory: Path) -> list[Path]:
        """The directories in one, which is not in itself though the root is its own parent."""
        return [path for path in self._children.get(directory, ()) if path != directory]


class MemoryFiles:
    """One disk. `cut_power` gives the disk as the next start finds it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.read_bytes: Counter[str] = Counter()  # asked for, by the suffix of the file
        self.space = DiskSpace(1 << 40, 1 << 39)
        self.now_ms = 1_700_000_000_000  # when files are said to be changed
        self._names = _Names()
        self._synced_names = _Names()
        self._dirs = _Directories()
        self._locked: set[Path] = set()
        self._faults: list[_Fault] = []
        self._round: SyncRound | None = None
        self.stop_after: int | None = None  # so many more changes succeed, then the machine stops

    # Trouble

    def fail_next(
        self, operation: str, number: int = errno.EIO, *, after_bytes: int = 0, suffix: str = ""
    ) -> None:
        """Let the next `operation`, on a name that ends in `suffix`, fail with this errno."""
        self._faults.append(_Fault(operation, number, after_bytes, suffix))

    def forget_faults(self) -> None:
        """Let what was to fail succeed."""
        self._faults.clear()

    @property
    def has_faults(self) -> bool:
        """Whether something that was to fail has not been tried."""
        return bool(self._faults)

    def take_fault(self, operation: str, path: Path) -> _Fault | None:
        if self.stop_after is not None and operation in _CHANGES:
            if self.stop_after == 0:
                raise MachineStopped
            self.stop_after -= 1
        for fault in self._faults:
            if fault.operation == operation and path.name.endswith(fault.suffix):
                self._faults.remove(fault)
                return fault
        return None

    def fail_if_asked(self, operation: str, path: Path) -> None:
        fault = self.take_fault(operation, path)
        if fault is not None:
            raise OSError(fault.number, os.strerror(fault.number))

    def flip(self, path: Path, position: int) -> None:
        """A bit has changed by itself."""
        self._names[path].content[position] ^= 1

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to be damaged. Another object once the file was replaced."""
        return self._names[path].content

    def paths(self) -> list[Path]:
        """Every file."""
        return list(self._names)

    def directories(self) -> list[Path]:
        """Every directory, parents first."""
        return sorted(self._dirs)

    @contextmanager
    def sync_round(self) -> Iterator[SyncRound]:
        """Record the syncs of a `with` block, for `undo`."""
        self._round = SyncRound()
        try:
            yield self._round
        finally:
            self._round = None

    def undo(self, round_: SyncRound) -> None:
        """The syncs of a round have not been done."""
        for inode, synced in round_.inodes.items():
            inode.synced = synced
        for directory, names in round_.names.items():
            self._synced_names.replace(directory, names)

    def note_sync(self, inode: _Inode) -> None:
        if self._round is not None:
            self._round.inodes.setdefault(inode, inode.synced)

    def cut_power(self, rng: Random) -> "MemoryFiles":
        """The disk after a power cut: of what was not synced, some bytes and names survive."""
        after = MemoryFiles()
        after._dirs = _Directories(self._dirs)
        names = dict(self._synced_names)
        for path, inode in self._names.items():
            if path not in names and rng.random() < 0.5:
                names[path] = inode
        for path, inode in names.items():
            content = bytearray(_survives(inode, rng))
            after._names[path] = _Inode(content, bytes(content))
        after._synced_names = _Names(after._names)
        return after

    def kill(self) -> "MemoryFiles":
        """The same disk after only the process died: everything written is there, unsynced."""
        after = MemoryFiles()
        after._dirs = _Directories(self._dirs)
        after._names = _Names(self._names)
        after._synced_names = _Names(self._synced_names)
        return after

    # What Files asks

    def open(self, path: StrPath) -> MemoryFile:
        path = Path(path)
        self.fail_if_asked("open", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return MemoryFile(self, path, self._names[path])

    def create(self, path: StrPath) -> MemoryFile:
        path = Path(path)
        self.fail_if_asked("create", path)
        assert path.parent in self._dirs, path
        if path in self._names:
            self._names[path].content.clear()
        else:
            self._names[path] = _Inode()
        return MemoryFile(self, path, self._names[path])

    def read_whole(self, path: StrPath) -> bytes:
        file = self.open(path)
        return file.read(0, file.size_bytes())

    def list(self, directory: StrPath) -> list[Entry]:
        directory = Path(directory)
        self.fail_if_asked("list", directory)
        found = [
            Entry(path.name, False, len(inode.content))
            for path, inode in self._names.within(directory).items()
        ]
        found += [Entry(path.name, True, 0) for path in self._dirs.within(directory)]
        return sorted(found)

    def names(self, directory: StrPath) -> Sequence[str]:
        return [entry.name for entry in self.list(directory)]

    def size_bytes(self, path: StrPath) -> int:
        return len(self._names[Path(path)].content)

    def make_dir(self, path: StrPath) -> None:
        path = Path(path)
        for one in (path, *path.parents):
            self._dirs.add(one)

    def rename(self, old: StrPath, new: StrPath) -> None:
        old, new = Path(old), Path(new)
        self.fail_if_asked("rename", old)
        if old in self._dirs:
            self._rename_dir(old, new)
        else:
            inode = self._names[old]
            del self._names[old]
            self._names[new] = inode

    def _rename_dir(self, old: Path, new: Path) -> None:
        self._dirs.remove(old)
        self._dirs.add(new)
        for names in (self._names, self._synced_names):
            for path, inode in names.within(old).items():
                del names[path]
                names[new / path.name] = inode

    def unlink(self, path: StrPath) -> None:
        path = Path(path)
        self.fail_if_asked("unlink", path)
        if path in self._names:
            del self._names[path]

    def remove_dir(self, path: StrPath) -> None:
        path = Path(path)
        assert not self.list(path), path
        self._dirs.remove(path)

    def sync_dir(self, path: StrPath) -> None:
        path = Path(path)
        self.fail_if_asked("sync_dir", path)
        self.counts["sync_dir"] += 1
        if self._round is not None:
            self._round.names.setdefault(path, self._synced_names.within(path))
        self._synced_names.replace(path, self._names.within(path))

    def sync_all(self, lock: Lock) -> None:
        self.fail_if_asked("sync_all", Path())
        self.counts["sync_all"] += 1
        for inode in self._names.values():
            inode.synced = bytes(inode.content)
        self._synced_names = _Names(self._names)

    def disk_space(self, path: StrPath) -> DiskSpace:
        return self.space

    def lock(self, path: Path) -> "_Lock":
        if path in self._locked:
            raise UsageRefused(f"{path.parent} is in use by another broker")
        return _Lock(self._locked, path)


class _Lock:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path
        locked.add(path)

    def fileno(self) -> int:
        return -1

    def __del__(self) -> None:
        self._locked.discard(self._path)


def _survives(inode: _Inode, rng: Random) -> bytes:
    """Everything synced, and any first part of what was appended since; perhaps torn within."""
    synced, content = inode.synced, bytes(inode.content)
    if not content.startswith(synced):  # rewritten or cut since: either state may be on disk
        return rng.choice([synced, content])
    kept = rng.randint(len(synced), len(content))
    torn = bytearray(content[:kept])
    if kept > len(synced) and rng.random() < 0.3:
        at = rng.randrange(max(len(synced), kept - 20), kept)
        torn[at:] = bytes(kept - at)  # a block that was allocated but never written
    return bytes(torn)
