"""Three machines under kills, cuts and a power cut keep every promise; `make chaos` does more.

The run is a process in namespaces of its own, so that nothing is left of it whatever happens.
`OTTLA_CHAOS=whole` takes the sizes of `make chaos`; `OTTLA_CHAOS_KILLS` and such set single ones.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from chaos.network import namespace_problem
from chaos.plan import WHOLE, Sizes
from crash.mounts import mounting_problem
from fakes.etcd_process import etcd_program

_ROOT: Final = Path(__file__).parents[2]
_SEED: Final = int(os.environ.get("OTTLA_CHAOS_SEED", "") or int.from_bytes(os.urandom(4)))
_BASE: Final = WHOLE if os.environ.get("OTTLA_CHAOS") == "whole" else Sizes()
_SIZES: Final = {
    field.name: os.environ.get(f"OTTLA_CHAOS_{field.name.upper()}", getattr(_BASE, field.name))
    for field in fields(Sizes)
}
_FAULTS: Final = sum(int(_SIZES[name]) for name in ("kills", "cuts", "power_one", "power_all"))
_TIMEOUT_S: Final = 600 + 120 * _FAULTS + int(_SIZES["records"]) // 100


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
def test_clusters_keep_every_promise_whatever_is_killed_cut_off_or_without_power(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    if (problem := namespace_problem() or mounting_problem("loop", tmp_path)) is not None:
        pytest.skip(problem)
    etcd_program()
    arguments = [f"--{name.replace('_', '-')}={size}" for name, size in _SIZES.items()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "chaos", f"--seed={_SEED}"),
            *(f"--folder={tmp_path / 'run'}", *arguments),
        ],
        env={**os.environ, "PYTHONPATH": f"{_ROOT / 'tests'}:{_ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    sys.stdout.write(f"OTTLA_CHAOS_SEED={_SEED}\n{done.stdout}")  # shown when the test fails
    assert done.returncode == 0, f"OTTLA_CHAOS_SEED={_SEED}: logs in {tmp_path / 'run'}"
    totals = done.stdout.split("TOTALS\n")[1].splitlines()
    report(f"chaos of seed {_SEED}: {'; '.join(totals)}")
