"""Whose directory it is, how far it has seen the store, and that nobody else's is touched."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.broker.meta_properties import Identity, MetaProperties, check_identity, read_identity
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.cluster.values import ClusterId
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint
from ottla.storage.files import OsFiles

FILES: Final = OsFiles()
KNOWN: Final = Identity("it", BrokerId(0), Revision(7))
KAFKAS: Final = "#\n#Mon Nov 16 2026\ncluster.id=kafka\ndirectory.id=x\nnode.id=1\nversion=1\n"


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    meta = MetaProperties(FILES, tmp_path, KNOWN, is_written=False)
    meta.remember(Revision(9))
    assert read_identity(FILES, tmp_path) == Identity("it", BrokerId(0), Revision(9))
    meta.remember(Revision(8))
    assert read_identity(FILES, tmp_path) == Identity("it", BrokerId(0), Revision(9))


def test_a_registration_begins_the_generations_of_a_disk_anew(tmp_path: Path) -> None:
    meta = MetaProperties(FILES, tmp_path, KNOWN, is_written=False)
    meta.note_registered(5, "a-b")
    meta.raise_generation()
    meta.raise_generation()
    found = read_identity(FILES, tmp_path)
    assert found == meta.identity
    assert (found.broker_epoch, found.boot_id, found.generation) == (5, "a-b", 2)
    meta.note_registered(6, "a-b")
    assert meta.identity.generation == 0


@pytest.mark.parametrize("bit", range(8))
def test_no_byte_can_change_unnoticed(bit: int) -> None:
    whole = KNOWN.encode()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        assert Identity.decode(bytes(flipped)) is None


def test_a_file_of_old_is_believed_and_written_again_with_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=it\nnode.id=3\n")
    known = read_identity(FILES, tmp_path)
    assert known == Identity("it", BrokerId(3), is_checked=False)
    MetaProperties(FILES, tmp_path, known, is_written=False).remember(Revision(0))
    assert read_identity(FILES, tmp_path) == Identity("it", BrokerId(3))


@pytest.mark.parametrize(
    ("image", "node_id", "advice"),
    [
        (ClusterImage(Revision(9), ClusterId("other")), 0, "bring back its cluster.sqlite"),
        (ClusterImage(Revision(9), ClusterId("it")), 1, "start it with --node-id 0"),
        (ClusterImage(Revision(6), ClusterId("it")), 0, "went back: it is at revision 6"),
    ],
)
def test_a_store_that_does_not_go_with_the_directory_is_refused(
    image: ClusterImage, node_id: int, advice: str
) -> None:
    with pytest.raises(UsageRefused, match=advice):
        check_identity(Path("data"), KNOWN, image, BrokerId(node_id))


def test_a_store_as_new_as_it_was_seen_is_followed() -> None:
    check_identity(Path("data"), KNOWN, ClusterImage(Revision(7), ClusterId("it")), BrokerId(0))


def _write(name: str, content: bytes = b"mine") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return make


def _make_dir(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).mkdir(parents=True)


def _all(*makes: Callable[[Path], None]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for one in makes:
            one(root)

    return make


def _foreign_database(root: Path) -> None:
    connection = sqlite3.connect(root / "cluster.sqlite")
    connection.execute("PRAGMA application_id = 7")
    connection.execute("CREATE TABLE mine (it TEXT)")
    connection.commit()
    connection.close()


def _kafkas(root: Path) -> None:
    _write("meta.properties", KAFKAS.encode())(root)
    _write("orders-0/00000000000000000000.log")(root)
    _write("orders-0/partition.metadata", b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw")(root)


def _old_kafkas(root: Path) -> None:
    _write("orders-0/00000000000000000000.log")(root)
    _write("recovery-point-offset-checkpoint", b"0\n1\norders 0 5\n")(root)


SHAPES: Final[dict[str, Callable[[Path], None]]] = {
    "photos": _write("photos-2024/beach.jpg"),
    "empty folder named like a log": _make_dir("photos-2024"),
    "folder named like a deleted one": _write("projects-delete/report.txt"),
    "exactly like a deleted log": _write(f"orders-0.{7:032x}-delete/{0:020d}.log"),
    "exactly like a stray": _write(f"orders-0.{7:032x}-stray/{0:020d}.log"),
    "a segment": _write(f"orders-0/{0:020d}.log"),
    "an empty segment": _write(f"orders-0/{0:020d}.log", b""),
    "compaction's leftovers": _write(f"orders-0/{0:020d}.log.cleaned"),
    "a deleted segment": _write(f"orders-0/{0:020d}.log.deleted"),
    "a text": _write("notes.txt"),
    "a hidden file": _write(".gitignore"),
    "a reserve": _write(".reserve", b"not zeros"),
    "a clean mark": _write(".clean-shutdown"),
    "a checkpoint": _write("recovery-point-offset-checkpoint"),
    "another's database": _foreign_database,
    "no database at all": _write("cluster.sqlite", b"my notes on a cluster, at length"),
    "another's properties": _write("meta.properties", b"colour=blue\n"),
    "empty properties": _write("meta.properties", b""),
    "Kafka's": _kafkas,
    "an old Kafka's": _old_kafkas,
    "a home": _all(_write(".bashrc"), _write("a/b/c.txt"), _write("music-1/song.mp3")),
    "files beside a file system's own": _all(_make_dir("lost+found"), _write("thesis.tex")),
}


def _tree(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Everything below a directory, itself included, with contents and times."""
    return {
        str(path.relative_to(root)): (
            path.read_bytes() if path.is_file() else None,
            path.stat().st_mtime_ns,
        )
        for path in (root, *root.rglob("*"))
    }


async def _start_and_stop(data: Path) -> None:
    options = ServeOptions(data=data, listen=Endpoint("127.0.0.1", 0))
    broker = await Broker.start(options, Environment())
    await broker.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_directory_that_is_not_ours_is_left_as_it_is(tmp_path: Path, shape: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    SHAPES[shape](data)
    before = _tree(data)
    with pytest.raises(UsageRefused, match="choose"):
        asyncio.run(_start_and_stop(data))
    assert _tree(data) == before


@pytest.mark.parametrize(
    "names", [[], ["lost+found/"], [".lock", "meta.properties.tmp"], [".lock", "cluster.sqlite"]]
)
def test_an_empty_directory_or_an_interrupted_first_start_is_taken(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (_make_dir(name) if name.endswith("/") else _write(name, b""))(tmp_path)
    asyncio.run(_start_and_stop(tmp_path))
    assert read_identity(FILES, tmp_path) is not None


def test_what_lies_in_our_directory_and_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    asyncio.run(_start_and_stop(tmp_path))
    for name in ("photos-2024/beach.jpg", "a-1/b-2/c.log", "mail-delete/inbox", "orders-01/x"):
        _write(name)(tmp_path)
    (tmp_path / "empty-7").mkdir()
    ours = {path.name for path in tmp_path.iterdir() if path.is_file()}
    before = {name: seen for name, seen in _tree(tmp_path).items() if name not in {".", *ours}}
    asyncio.run(_start_and_stop(tmp_path))
    after = {name: seen for name, seen in _tree(tmp_path).items() if name not in {".", *ours}}
    assert after == before
