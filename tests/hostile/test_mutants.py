"""Thousands of broken requests: none is felt by anybody but its sender.

`OTTLA_SEED=7 OTTLA_MUTANTS=1000000` sends others, and more.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.attacked_broker import MIB, attacked_broker, wait_until
from hostile.control import served_throughout
from hostile.mutants import Mutants, recorded_frames
from hostile.onslaught import Fate, send_all
from hostile.wire import create_topic, served_layouts

COUNT = int(os.environ.get("OTTLA_MUTANTS", "20000"))
SEED = int(os.environ.get("OTTLA_SEED", "20261115"))


@pytest.mark.slow
def test_mutated_requests_hurt_nobody_but_their_sender(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    print(f"OTTLA_SEED={SEED} OTTLA_MUTANTS={COUNT}")  # noqa: T201  # shown when it fails
    with attacked_broker(tmp_path) as broker:
        create_topic(broker, "orders")
        mutants = Mutants(SEED, served_layouts(broker), recorded_frames())
        send_all(broker, mutants.next, COUNT // 100)  # decoders are compiled on their first use
        descriptors = broker.descriptor_count()
        with served_throughout(broker) as control, broker.memory_grows_less_than(64 * MIB):
            fates = send_all(broker, mutants.next, COUNT)
        assert min(fates[fate] for fate in Fate) > COUNT // 1000, fates
        told = ", ".join(f"{fate.name.lower()} {count}" for fate, count in sorted(fates.items()))
        report(f"{told}; {control.figures()}")
        assert broker.defects() == []
        wait_until(lambda: broker.metric("ottla_connections") == 0)
        assert broker.metric("ottla_request_buffer_bytes") == 0
        partitions = sum(1 for path in broker.data.iterdir() if path.is_dir())
        assert broker.descriptor_count() <= descriptors + 8 * partitions
    assert {path.name for path in tmp_path.iterdir()} == {"data", "broker.log"}
