"""Opening a store: the first process names the cluster, and older formats are rewritten."""

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice

from ottla.cluster import layout
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import (
    NEVER,
    Compare,
    Conflict,
    CoordinationStore,
    Delete,
    Entry,
    Put,
    Snapshot,
    Write,
)
from ottla.cluster.values import CLUSTER_KEY, ClusterId, ClusterIdentity
from ottla.model import Uuid, format_uuid


async def open_image(store: CoordinationStore, draw_uuid: Callable[[], Uuid]) -> ClusterImage:
    """The image of a store, of a cluster that has a name and in today's format."""
    snapshot = await store.range("")
    image = layout.read_image(snapshot)
    if not image.cluster_id:
        await _name_cluster(store, draw_uuid, snapshot)
    elif layout.outdated_entries(snapshot):
        await _modernize(store, snapshot)
    else:
        return image
    return layout.read_image(await store.range(""))


async def _name_cluster(
    store: CoordinationStore, draw_uuid: Callable[[], Uuid], snapshot: Snapshot
) -> None:
    if snapshot.entries:
        raise layout.ValueDamaged(CLUSTER_KEY, "is missing")
    identity = ClusterIdentity(ClusterId(format_uuid(draw_uuid())))
    with contextlib.suppress(Conflict):  # another process created it
        await store.commit(
            [Put(CLUSTER_KEY, layout.encode(CLUSTER_KEY, identity))],
            [Compare(CLUSTER_KEY, NEVER)],
        )


async def _modernize(store: CoordinationStore, snapshot: Snapshot) -> None:
    """Rewrite a store of an older format in the current one.

    Registrations are removed: they were under leases, and every broker registers anew.
    """
    with contextlib.suppress(Conflict):  # another process rewrites it; it is read again soon
        steps = _modernizing_steps(snapshot)
        while some := list(islice(steps, min(store.limits.writes, store.limits.compares))):
            conditions = {entry.key: entry.mod_revision for _, entry in some}
            await store.commit(
                [write for write, _ in some],
                [Compare(key, revision) for key, revision in conditions.items()],
            )


def _modernizing_steps(snapshot: Snapshot) -> Iterator[tuple[Write, Entry]]:
    """Each write, with the old entry that it comes from."""
    is_checked = layout.is_checked_store(snapshot)
    for entry in layout.outdated_entries(snapshot):
        modern = layout.modernized(entry, is_checked=is_checked)
        for one in modern:
            yield Put(one.key, one.value), entry
        if not modern:
            yield Delete(entry.key), entry
