"""Being asked to stop: everything that was promised is kept, and the next start is a short one."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crash.load import Load, check_promises, promises_of, read_all
from crash.processes import broker_process, run_ottla
from crash.topics import admin_of, create_topics

_STOPS: Final = int(os.environ.get("OTTLA_CRASH_STOPS", "2"))
_PARTITIONS: Final = [("synced", 0), ("synced", 1), ("cached", 0), ("cached", 1)]
_CLEAN: Final = ".clean-shutdown"


@pytest.mark.slow
def test_a_stop_under_load_is_clean_and_loses_nothing(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    with broker_process(tmp_path / "data") as broker:
        segments = {"segment.bytes": "16384"}
        create_topics(admin_of(broker.address), {"synced": segments}, partitions=2)
        cached = {**segments, "durability": "replicated"}
        create_topics(admin_of(broker.address), {"cached": cached}, partitions=2)
        loads = [
            Load(broker.address, "idempotent", _PARTITIONS, is_idempotent=True),
            Load(broker.address, "plain", _PARTITIONS, is_idempotent=False),
        ]
        for load in loads:
            load.start()
        try:
            for _ in range(_STOPS):
                for load in loads:
                    load.resume()
                    load.wait_acked(load.acked_count + rng.randint(50, 500))
                assert broker.stop() == 0
                assert (tmp_path / "data" / _CLEAN).exists()
                broker.start()
                assert not (tmp_path / "data" / _CLEAN).exists(), "the mark holds for one start"
                for load in loads:
                    load.pause()
                promises = promises_of(loads)
                check_promises(read_all(broker.address, _PARTITIONS), promises)
        finally:
            for load in loads:
                load.stop()
        checked = check_promises(read_all(broker.address, _PARTITIONS), promises_of(loads))
        assert broker.stop() == 0
    assert not any(load.failed for load in loads)
    report(f"{_STOPS} stops under load: {checked} acknowledged records, 0 lost")


def test_a_clean_start_reads_no_sealed_segment_and_an_unclean_one_does(
    tmp_path: Path,
) -> None:
    """A flipped bit shows who looked: only the start after a kill may find it."""
    data = tmp_path / "data"
    with broker_process(data) as broker:
        create_topics(admin_of(broker.address), {"t": {"segment.bytes": "16384"}})
        load = Load(broker.address, "writer", [("t", 0)], is_idempotent=True)
        load.start()
        load.wait_acked(1000)
        load.stop()
        assert broker.stop() == 0
        sealed = min((data / "t-0").glob("*.log"))
        content = bytearray(sealed.read_bytes())
        content[-1] ^= 1
        sealed.write_bytes(content)
        broker.start()
        assert "log damaged" not in broker.said()
        broker.kill()
        (data / "recovery-point-offset-checkpoint").unlink()
        broker.start()
        assert "log damaged" in broker.said()


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        create_topics(admin_of(broker.address), {"t": {}})
        second = run_ottla("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        assert second.returncode == 2
        assert second.stdout == ""
        assert second.stderr.count("\n") == 1
        assert "in use by another broker" in second.stderr
        assert read_all(broker.address, [("t", 0)]) == {("t", 0): []}
        broker.kill()
        broker.start()  # a killed broker holds nothing
        assert broker.stop() == 0
