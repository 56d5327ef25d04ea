"""The power goes: on a topic with `durability=fsync` whatever was acknowledged is there afterwards.

ext4 in a file is shut down without flushing its journal, the broker is killed, and what reached
the disk is mounted again.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crash.load import Load, Partition, check_promises, lost, promises_of, read_all
from crash.mounts import Ext4
from crash.processes import BrokerProcess, broker_process, run_ottla
from crash.topics import admin_of, create_topics, partition_counts

_ROUNDS: Final = int(os.environ.get("OTTLA_POWER_CUTS", "2"))
_OFTEN: Final = "--set=log.flush.offset.checkpoint.interval.ms=100"
_SMALL_SEGMENTS: Final = {"segment.bytes": "16384"}


def _cut(broker: BrokerProcess, disk: Ext4) -> None:
    disk.cut_power()
    broker.kill()
    disk.restore_power()
    broker.start()


@pytest.mark.slow
def test_a_power_cut_loses_nothing_that_was_synced(
    ext4: Ext4, rng: Random, report: Callable[[str], None]
) -> None:
    partitions: list[Partition] = [("synced", 0), ("synced", 1), ("synced", 2)]
    with broker_process(
        ext4.path / "data", _OFTEN, log_file=ext4.path.parent / "broker.log"
    ) as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"synced": _SMALL_SEGMENTS}, partitions=3)
        loads = [
            Load(broker.address, "idempotent", partitions, is_idempotent=True),
            Load(broker.address, "plain", partitions, is_idempotent=False),
        ]
        newest: list[Load] = []
        for load in loads:
            load.start()
        try:
            for number in range(_ROUNDS):
                for load in loads:
                    load.resume()
                    load.wait_acked(load.acked_count + rng.randint(200, 1500))
                newest.append(_write_to_a_new_topic(broker, f"new-{number}"))
                _cut(broker, ext4)
                for load in loads:
                    load.pause()
                _check_store(ext4.path / "data")
                assert partition_counts(admin) == {
                    "synced": 3,
                    **{f"new-{before}": 1 for before in range(number + 1)},
                }
                promises = promises_of([*loads, *newest])
                every = [*partitions, *((f"new-{before}", 0) for before in range(number + 1))]
                check_promises(read_all(broker.address, every), promises)
        finally:
            for load in loads:
                load.stop()
        promises = promises_of([*loads, *newest])
        every = [*partitions, *((f"new-{number}", 0) for number in range(_ROUNDS))]
        checked = check_promises(read_all(broker.address, every), promises)
        assert broker.stop() == 0
    assert not any(load.failed for load in loads)
    verified = run_ottla("log", "verify", str(ext4.path / "data"))
    assert verified.returncode == 0, verified.stderr
    report(f"{_ROUNDS} power cuts: {checked} acknowledged records on fsync topics, 0 lost")


def _write_to_a_new_topic(broker: BrokerProcess, name: str) -> Load:
    """A topic and its first records, both acknowledged an instant before the power goes."""
    create_topics(admin_of(broker.address), {name: {}})
    load = Load(broker.address, f"first of {name}", [(name, 0)], is_idempotent=True)
    load.start()
    load.wait_acked(1)
    load.stop()
    return load


def _check_store(data: Path) -> None:
    with sqlite3.connect(f"file:{data / 'cluster.sqlite'}?mode=ro", uri=True) as store:
        assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()


@pytest.mark.slow
def test_the_cut_is_real_for_it_takes_what_was_not_synced(
    ext4: Ext4, report: Callable[[str], None]
) -> None:
    with broker_process(ext4.path / "data", log_file=ext4.path.parent / "broker.log") as broker:
        create_topics(
            admin_of(broker.address), {"cached": {**_SMALL_SEGMENTS, "durability": "replicated"}}
        )
        load = Load(broker.address, "hopeful", [("cached", 0)], is_idempotent=False)
        load.start()
        load.wait_acked(2000)
        load.stop()
        promises = promises_of([load])
        _cut(broker, ext4)
        found = read_all(broker.address, [("cached", 0)])
        missing = lost(found, promises)
        assert missing, "nothing was lost: this way of cutting the power does not cut it"
        left = found["cached", 0]
        assert [letter.offset for letter in left] == list(range(len(left)))
        assert [letter.number for letter in left] == list(range(len(left)))
        assert partition_counts(admin_of(broker.address)) == {"cached": 1}
    report(
        f"a power cut on a replicated topic: {load.acked_count} acknowledged, {len(missing)} lost"
    )
