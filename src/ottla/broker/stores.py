"""The coordination store of a broker, as its command line names it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.environment import Environment, OpenStore
from ottla.clock import Clock
from ottla.cluster.store import CoordinationStore
from ottla.cluster.store_sqlite import SqliteStore
from ottla.cluster.values import ClusterId
from ottla.errors import UsageRefused

if TYPE_CHECKING:
    from ottla.cluster.etcd_address import EtcdAccess

SQLITE: Final = "sqlite:"
ETCD: Final = ("etcd:", "etcds:", "etcd+")
_POLL_S: Final = 0.05  # for changes of other brokers
_MACHINE_ID: Final = Path("/etc/machine-id")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def environment_of(store: str | None, access: "EtcdAccess | None" = None) -> Environment:
    """The machine's own environment, with a store that brokers share, if one is named.

    Reads files: call it before there is a loop.
    """
    environment = Environment()
    if store is None:
        return environment
    return replace(
        environment,
        open_store=_opener(store, access),
        has_own_store=False,
        boot_id=_read_id(_BOOT_ID),
        machine_id=_read_id(_MACHINE_ID),
    )


def _opener(store: str, access: "EtcdAccess | None") -> OpenStore:
    if store.startswith(ETCD):
        return _etcd_opener(store, access)
    path = sqlite_path(store)
    if not path.parent.is_dir():
        raise UsageRefused(f"{path.parent} does not exist: make it before brokers share {path}")
    return partial(_open_sqlite, path)


def sqlite_path(store: str) -> Path:
    """The file of a store of one machine. Raises UsageRefused if it is no store at all."""
    path = Path(store.removeprefix(SQLITE))
    if not store.startswith(SQLITE) or path.name in {"", ".."}:
        raise UsageRefused(
            f"--store {store!r} is not a coordination store: give sqlite:FILE, a file that all"
            " brokers of this machine share, or etcd://HOST:2379,HOST:2379/PREFIX for several"
            " machines"
        )
    return path


def _read_id(path: Path) -> str:
    """An id that the system keeps in a file; empty where it has none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


async def _open_sqlite(path: Path, data: Path, clock: Clock) -> CoordinationStore:
    return await SqliteStore.open(path, clock, poll_interval_s=_POLL_S)


def _etcd_opener(store: str, access: "EtcdAccess | None") -> OpenStore:
    from ottla.cluster.etcd_address import EtcdAccess, EtcdAddress  # noqa: PLC0415  # as below

    address, granted = EtcdAddress.parse(store), access or EtcdAccess()

    async def open_etcd(_data: Path, _clock: Clock) -> CoordinationStore:
        from ottla.cluster.store_etcd import EtcdStore  # noqa: PLC0415  # h11: others need none

        return await EtcdStore.open(address, tls=granted.tls, credentials=granted.credentials)

    return open_etcd


def machine_name(machine_id: str, cluster_id: ClusterId) -> str | None:
    """A name of a machine that says nothing about it in other clusters; None without an id."""
    if not machine_id:
        return None
    import hashlib  # noqa: PLC0415  # a broker without peers needs none

    return hashlib.sha256(f"{machine_id} {cluster_id}".encode()).hexdigest()[:16]
