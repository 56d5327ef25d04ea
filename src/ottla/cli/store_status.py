"""The state of a coordination store, as `ottla store status` prints it."""

from typing import Any

from ottla.broker.stores import sqlite_path
from ottla.clock import SystemClock
from ottla.cluster import layout
from ottla.cluster.etcd_address import EtcdAccess, EtcdAddress
from ottla.cluster.store import Snapshot, StoreUnavailable
from ottla.cluster.store_sqlite import SqliteStore

Row = dict[str, Any]


async def etcd_row(store: str, access: EtcdAccess) -> Row:
    from ottla.cluster.etcd_status import EtcdMember, read_status  # noqa: PLC0415  # needs h11

    def member(one: EtcdMember) -> Row:
        role = "leader" if one.is_leader else "learner" if one.is_learner else "follower"
        return {
            "name": one.name or None,
            "id": f"{one.id:x}" if one.id else None,
            "address": None if one.endpoint is None else str(one.endpoint),
            "role": "unknown" if one.problem else role,
            "version": one.version or None,
            "size_bytes": one.size_bytes,
            "used_bytes": one.used_bytes,
            "problem": one.problem or None,
        }

    found = await read_status(EtcdAddress.parse(store), access)
    return {
        "store": store,
        "kind": "etcd",
        "health": str(found.health),
        "revision": found.revision,
        **_content(found.snapshot),
        "etcd_cluster": f"{found.cluster_id:x}" if found.cluster_id else None,
        "members": [member(one) for one in found.members],
        "alarms": list(found.alarms),
        "problems": list(found.problems),
        "warnings": list(found.warnings),
    }


async def sqlite_row(store: str) -> Row:
    path = sqlite_path(store)
    row: Row = {"store": store, "kind": "sqlite", "health": "unreachable", "revision": None}
    if not path.is_file() or not path.stat().st_size:
        problem = f"{path} does not exist or is empty: the first broker that uses it makes it"
        return {**row, **_content(None), "problems": [problem], "warnings": []}
    opened = await SqliteStore.open(path, SystemClock())
    try:
        snapshot = await opened.range("")
    except StoreUnavailable as problem:
        return {**row, **_content(None), "problems": [str(problem)], "warnings": []}
    finally:
        await opened.close()
    return {
        **row,
        "health": "healthy",
        "revision": snapshot.revision,
        **_content(snapshot),
        "file": str(path),
        "size_bytes": path.stat().st_size,
        "problems": [],
        "warnings": [],
    }


def _content(snapshot: Snapshot | None) -> Row:
    """The cluster in a store, and the brokers that are alive. Raises UsageRefused if damaged."""
    if snapshot is None:
        return {"cluster": None, "brokers": []}
    image = layout.read_image(snapshot)
    brokers = [
        {"id": one.id, "address": str(one.endpoint)} for _, one in sorted(image.brokers.items())
    ]
    return {"cluster": image.cluster_id or None, "brokers": brokers}
