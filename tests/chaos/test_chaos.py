"""Three machines under kills, cuts and a power cut keep every promise; `make chaos` does more.

A run is a process in namespaces of its own, so that nothing is left of it whatever happens.
`OTTLA_CHAOS=whole` takes the sizes of `make chaos`; `OTTLA_CHAOS_KILLS` and such set single ones.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from chaos.network import namespace_problem
from chaos.plan import WHOLE, Sizes
from crash.mounts import mounting_problem
from fakes.etcd_process import etcd_program

_ROOT: Final = Path(__file__).parents[2]
_SEED: Final = int(os.environ.get("OTTLA_CHAOS_SEED", "") or int.from_bytes(os.urandom(4)))
_BASE: Final = asdict(WHOLE if os.environ.get("OTTLA_CHAOS") == "whole" else Sizes())
_SIZES: Final = {
    name: float(os.environ.get(f"OTTLA_CHAOS_{name.upper()}", size)) for name, size in _BASE.items()
}
_FAULTS: Final = sum(_SIZES[name] for name in ("kills", "cuts", "power_one", "power_all"))
_TIMEOUT_S: Final = 600 + 120 * _FAULTS + _SIZES["records"] / 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run has its disks and logs; skips where it may not have what it needs."""
    if (problem := namespace_problem() or mounting_problem("loop", tmp_path)) is not None:
        pytest.skip(problem)
    etcd_program()
    return tmp_path / "run"


def run_chaos(
    folder: Path, sizes: dict[str, float], *arguments: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [
            *("setpriv", "--pdeathsig", "KILL"),  # it ends with this process, whatever ends that
            *(sys.executable, "-m", "chaos", f"--seed={_SEED}", f"--folder={folder}"),
            *(f"--{name.replace('_', '-')}={size:g}" for name, size in sizes.items()),
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": f"{_ROOT / 'tests'}:{_ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    sys.stdout.write(f"OTTLA_CHAOS_SEED={_SEED}\n{done.stdout}")  # shown when the test fails
    return done


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
def test_a_cluster_keeps_every_promise_whatever_is_killed_cut_off_or_without_power(
    folder: Path, report: Callable[[str], None]
) -> None:
    done = run_chaos(folder, _SIZES)
    assert done.returncode == 0, f"OTTLA_CHAOS_SEED={_SEED}: logs in {folder}"
    totals = done.stdout.split("TOTALS\n")[1].splitlines()
    report(f"chaos of seed {_SEED}: {'; '.join(totals)}")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize(
    ("plant", "faults", "says"),
    [
        (
            "acknowledged_before_replicated",
            "isolate,isolate_in",
            "PROBLEM acknowledged by an isolated leader",
        ),
        ("sequences_unchecked", "kill_leader,isolate,kill_leader", "PROBLEM doubled"),
    ],
)
def test_a_planted_bug_is_found(folder: Path, plant: str, faults: str, says: str) -> None:
    done = run_chaos(folder, asdict(Sizes()), f"--plant={plant}", f"--faults={faults}")
    assert done.returncode == 1
    assert says in done.stdout
