"""A large cluster elects leaders within seconds, with few commits (`python -m sim.capacity`)."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from sim.capacity import measure

_BROKERS: Final = int(os.environ.get("OTTLA_CAPACITY_BROKERS", "8"))
_PARTITIONS: Final = int(os.environ.get("OTTLA_CAPACITY_PARTITIONS", "400"))
_KILLS: Final = max(2, _BROKERS // 10)
_REAL_S: Final = 7200.0
_SETTLED_S: Final = 10.0  # of virtual time; six of it until leases end
_CHANGES_PER_COMMIT: Final = 60


@pytest.mark.slow
def test_partitions_of_brokers_that_die_together_are_led_again_soon(
    report: Callable[[str], None],
) -> None:
    phases = measure(_BROKERS, _PARTITIONS, _KILLS, _REAL_S)
    assert phases is not None, "every phase ends"
    elected = phases[-1]
    report(
        f"{_BROKERS} brokers, {_PARTITIONS} partitions, {_KILLS} killed: led again after"
        f" {elected.virtual_s:.1f} s, {elected.commit_count} commits,"
        f" {elected.written_bytes} bytes"
    )
    assert elected.virtual_s < _SETTLED_S
    touched = _PARTITIONS * 3 * _KILLS / _BROKERS
    assert elected.commit_count <= 4 + 2 * touched / _CHANGES_PER_COMMIT
