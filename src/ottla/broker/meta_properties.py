"""`meta.properties`: cluster and broker of a data directory, and the newest store revision it saw.

Kafka's name and format. A broker must not open the data of another cluster or broker, must not
touch a directory that is not Ottla's, and must not follow a store that went back.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ottla.cluster.image import ClusterImage
from ottla.cluster.sqlite_file import is_foreign
from ottla.cluster.store import NEVER, Revision
from ottla.cluster.store_sqlite import STORE_FILES
from ottla.cluster.values import UNREGISTERED
from ottla.errors import UsageRefused
from ottla.model import BrokerId
from ottla.records.crc import crc32c
from ottla.storage.files import Entry, Files, replace_file
from ottla.storage.log_dir import LOCK_FILE

IDENTITY_FILE: Final = "meta.properties"
_STORE_FILE: Final = STORE_FILES[0]
# Files of a directory whose first start was interrupted, or of an empty file system.
_BEGUN: Final = frozenset({LOCK_FILE, *STORE_FILES, IDENTITY_FILE + ".tmp", "lost+found"})

_LINES: Final = r"version=1\ncluster\.id=(?P<cluster>[!-~]+)\nnode\.id=(?P<node>[0-9]{1,10})\n"
_UNCHECKED: Final = re.compile(_LINES)
_CHECKED: Final = re.compile(
    f"(?P<body>{_LINES}ottla\\.store\\.revision=(?P<revision>[0-9]{{1,19}})\n"
    r"(ottla\.broker\.epoch=(?P<epoch>[0-9]{1,19})\nottla\.boot\.id=(?P<boot>[0-9a-f-]*)\n"
    r"(ottla\.disk\.generation=(?P<generation>[0-9]{1,19})\n)?)?)"
    "ottla\\.crc32c=(?P<crc>[0-9a-f]{8})\n"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of `meta.properties`. A file without a checksum is older and has no revision."""

    cluster_id: str
    node_id: BrokerId
    revision: Revision = NEVER  # the newest one of the store that this directory has seen
    is_checked: bool = True
    # With a store outside the directory: the registration under which it was last used, and in
    # which life of the machine; empty if it was closed since.
    broker_epoch: int = UNREGISTERED
    boot_id: str = ""
    generation: int = 0  # raised now and then: see `Registration.raise_generation`

    def encode(self) -> bytes:
        text = (
            f"version=1\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\n"
            f"ottla.store.revision={self.revision}\n"
        )
        if self.broker_epoch != UNREGISTERED:
            text += f"ottla.broker.epoch={self.broker_epoch}\nottla.boot.id={self.boot_id}\n"
            if self.generation:
                text += f"ottla.disk.generation={self.generation}\n"
        body = text.encode()
        return body + f"ottla.crc32c={crc32c(body):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Identity | None":
        """The inverse of `encode`; None if the file has another format or is damaged."""
        text = data.decode(errors="replace")
        if (match := _CHECKED.fullmatch(text)) is not None:
            if crc32c(match["body"].encode()) != int(match["crc"], 16):
                return None
            return cls(
                match["cluster"],
                BrokerId(int(match["node"])),
                Revision(int(match["revision"])),
                broker_epoch=int(match["epoch"] or UNREGISTERED),
                boot_id=match["boot"] or "",
                generation=int(match["generation"] or 0),
            )
        if (match := _UNCHECKED.fullmatch(text)) is not None:
            return cls(match["cluster"], BrokerId(int(match["node"])), is_checked=False)
        return None


def read_identity(files: Files, data: Path) -> Identity | None:
    """The identity of a directory; None if it is new. A foreign one is refused untouched."""
    content = _content(files, data)
    if IDENTITY_FILE not in content:
        _check_new(files, data, content)
        return None
    identity = Identity.decode(files.read_whole(data / IDENTITY_FILE))
    if identity is None and _STORE_FILE not in content:
        raise UsageRefused(
            f"{data} was not made by Ottla, but perhaps by Apache Kafka: its {IDENTITY_FILE} is not"
            " Ottla's; choose another directory with --data"
        )
    if identity is None:
        raise UsageRefused(
            f"{data / IDENTITY_FILE} is damaged, so it is not known whose data this is: bring back"
            f" a copy of the file, or run `ottla log accept-store {data}`"
        )
    return identity


def check_identity(
    data: Path,
    known: Identity | None,
    image: ClusterImage,
    node_id: BrokerId,
    *,
    has_own_store: bool = True,
) -> None:
    """Refuse a store, or a node id, that does not belong to this directory.

    With a store elsewhere a new directory is that of a new broker, or of one that lost its disk.
    """
    if known is None:
        if image.topics and has_own_store:
            raise UsageRefused(_missing(data))
        return
    if known.cluster_id != image.cluster_id:
        remedy = "bring back its cluster.sqlite" if has_own_store else "name its store with --store"
        raise UsageRefused(
            f"{data} holds data of cluster {known.cluster_id}, this is cluster {image.cluster_id}:"
            f" choose another directory with --data, or {remedy}"
        )
    if known.node_id != node_id:
        raise UsageRefused(
            f"{data} belongs to broker {known.node_id}: start it with"
            f" --node-id {known.node_id}, or choose another directory with --data"
        )
    if known.revision > image.revision:
        remedy = (
            f"bring back the newer {_STORE_FILE} with its -wal, or, if an older one was restored on"
            f" purpose, run `ottla log accept-store {data}`"
            if has_own_store
            else "it was restored from an older copy: bring back its newer data"
        )
        raise UsageRefused(
            f"the coordination store went back: it is at revision {image.revision}, and {data} has"
            f" seen revision {known.revision}; {remedy}"
        )


class MetaProperties:
    """Owner of the file while a broker uses the directory. One thread at a time."""

    def __init__(self, files: Files, data: Path, identity: Identity, *, is_written: bool) -> None:
        self._files = files
        self._path = data / IDENTITY_FILE
        self._identity = identity
        self._is_written = is_written

    @property
    def identity(self) -> Identity:
        """The content of the file, as far as it is known to be written."""
        return self._identity

    def remember(self, revision: Revision) -> None:
        """Make durable that the store has reached `revision`."""
        if self._is_written and revision <= self._identity.revision:
            return
        newest = max(revision, self._identity.revision)
        self._write(replace(self._identity, revision=newest, is_checked=True))

    def note_registered(self, epoch: int, boot_id: str) -> None:
        """Make durable under which registration the directory is used from now on."""
        self._write(replace(self._identity, broker_epoch=epoch, boot_id=boot_id, generation=0))

    def raise_generation(self) -> None:
        """Make the next generation of the disk durable."""
        self._write(replace(self._identity, generation=self._identity.generation + 1))

    def note_closed(self) -> None:
        """Make durable that everything in the directory is on disk."""
        if self._identity.boot_id:
            self._write(replace(self._identity, boot_id=""))

    def _write(self, identity: Identity) -> None:
        replace_file(self._files, self._path, identity.encode())
        self._identity, self._is_written = identity, True


def _content(files: Files, data: Path) -> dict[str, Entry]:
    try:
        return {entry.name: entry for entry in files.list(data)}
    except FileNotFoundError:
        return {}


def _check_new(files: Files, data: Path, content: Mapping[str, Entry]) -> None:
    """Refuse a directory without `meta.properties`, unless it holds nothing of value."""
    foreign = sorted(content.keys() - _BEGUN)
    if _STORE_FILE in content and is_foreign(files.read_whole(data / _STORE_FILE)):
        foreign = [_STORE_FILE]
    elif foreign and _STORE_FILE in content:
        raise UsageRefused(_missing(data))
    if foreign:
        raise UsageRefused(
            f"{data} is not empty and was not made by Ottla (it holds {foreign[0]!r}): nothing in"
            " it was touched; choose an empty or a new directory with --data"
        )


def _missing(data: Path) -> str:
    return (
        f"{data / IDENTITY_FILE} is missing, so it is not known whose data this is: bring back a"
        f" copy of the file, or run `ottla log accept-store {data}`"
    )
