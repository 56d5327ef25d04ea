"""`python -m chaos`: three brokers and three members of etcd in network namespaces, under faults.

Needs root, and nft. The faults are drawn from a seed, which is printed: `--seed` repeats them. A
run that fails keeps its logs and its history, and says where.
"""

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

from chaos.network import enter, namespace_problem
from chaos.plan import CUTS, KILLS, POWER, WHOLE, Sizes, draw, draw_kinds
from chaos.run import run, show
from sim.planted import PLANTS

_INSIDE = "OTTLA_CHAOS_INSIDE"


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.seed is None:
        arguments.seed = int.from_bytes(os.urandom(4))
    fields = dataclasses.fields(Sizes)
    sizes = Sizes(**{field.name: getattr(arguments, field.name) for field in fields})
    kinds = [kind for kind in arguments.faults.split(",") if kind]
    if unknown := set(kinds) - {*KILLS, *CUTS, *POWER}:
        sys.stderr.write(f"chaos: no such faults: {', '.join(sorted(unknown))}\n")
        return 2
    faults = draw_kinds(arguments.seed, kinds, sizes) if kinds else draw(arguments.seed, sizes)
    if arguments.show:
        for planned in faults:
            sys.stdout.write(f"{planned}\n")
        return 0
    if os.environ.get(_INSIDE) is None:
        if (problem := namespace_problem()) is not None:
            sys.stderr.write(f"chaos: {problem}\n")
            return 2
        os.environ[_INSIDE] = "1"
        enter([sys.executable, "-m", "chaos", *sys.argv[1:], "--seed", str(arguments.seed)])
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="ottla-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {arguments.seed}, logs in {folder}\n")
    verdict = run(arguments.seed, sizes, faults, folder, arguments.plant)
    show(verdict)
    for image in folder.glob("*.ext4"):
        image.unlink()
    if verdict.problems:
        sys.stdout.write(f"FAILED: seed {arguments.seed}, logs in {folder}\n")
        return 1
    if arguments.folder is None:
        shutil.rmtree(folder)
    sys.stdout.write("0 lost, 0 doubled, 0 out of order\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="that draws the faults (default: a new one)")
    parser.add_argument("--folder", help="for logs and disks (default: a new one)")
    parser.add_argument("--faults", default="", metavar="KIND,KIND", help="instead of drawn ones")
    parser.add_argument("--plant", default="", choices=["", *sorted(PLANTS)], help="with this bug")
    parser.add_argument("--show", action="store_true", help="only show the faults of the seed")
    for field in dataclasses.fields(Sizes):
        default = getattr(WHOLE, field.name)
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(default), default=default, help=f"(default {default})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
