"""Blocks of producer ids: the store has the first one that was never allocated."""

from ottla.cluster import layout
from ottla.cluster.store import (
    NEVER,
    Compare,
    CoordinationStore,
    Entry,
    Put,
    StoreUnavailable,
)
from ottla.model import ProducerId


async def allocate_producer_ids(store: CoordinationStore, count: int) -> range:
    """A block of producer ids; Conflict if another process allocates one at the same time."""
    key = layout.PRODUCER_IDS_KEY
    first, seen = ProducerId(0), NEVER
    for entry in (await store.get(key)).entries:
        first, seen = _next_producer_id(entry), entry.mod_revision
    value = layout.encode_next_producer_id(ProducerId(first + count))
    await store.commit([Put(key, value)], [Compare(key, seen)])
    return range(first, first + count)


def _next_producer_id(entry: Entry) -> ProducerId:
    try:
        return layout.decode_next_producer_id(entry.value)
    except layout.ValueDamaged as damage:  # intact when the broker started
        raise StoreUnavailable(str(damage)) from damage
