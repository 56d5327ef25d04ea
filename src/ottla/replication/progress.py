"""The high watermark: arithmetic of in-sync replicas, and nothing else."""

from collections.abc import Mapping

from ottla.model import BrokerId, Offset


def high_watermark(
    current: Offset,
    isr: frozenset[BrokerId],
    ends: Mapping[BrokerId, Offset],
    *,
    isr_min: int,
) -> Offset:
    """The offset below which every in-sync replica has everything. Never goes back.

    With fewer in-sync replicas than `isr_min` it stands still (KIP-966): what only the last
    replica has is not committed.
    """
    assert isr, "a leader is always in its own ISR"
    if len(isr) < isr_min:
        return current
    assert isr <= ends.keys(), f"the ends of {sorted(isr - ends.keys())} are unknown"
    return max(current, min(ends[broker] for broker in isr))
