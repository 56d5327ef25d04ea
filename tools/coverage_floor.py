"""Compare the branch coverage of each room with its floor, which may only rise.

    make coverage                              measure, then compare
    python -m tools.coverage_floor             compare again; status 1 if a room is below its floor
    python -m tools.coverage_floor --update    raise tests/coverage.toml to what was measured
    python -m tools.coverage_floor --missing   list what tests do not reach of rooms that are pure

A floor is a whole percentage of lines and branches, rounded down: tenths change with the examples
that properties take. A room is a folder of the package or a module beside them; what is pure in a
room of both kinds has a floor of its own.
"""

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

ROOT: Final = Path(__file__).resolve().parent.parent
FLOORS: Final = ROOT / "tests" / "coverage.toml"
REPORT: Final = ROOT / ".cache" / "coverage" / "report.json"
PACKAGE: Final = Path("src/ottla")


class Summary(TypedDict):
    """Counts of coverage.py for one file."""

    covered_lines: int
    num_statements: int
    covered_branches: int
    num_branches: int


class FileReport(TypedDict):
    """The part of coverage.py's JSON report that is about one file."""

    summary: Summary
    missing_lines: list[int]
    missing_branches: list[list[int]]


@dataclass(slots=True)
class Coverage:
    """Lines and branches that were reached, of those that there are."""

    reached: int = 0
    total: int = 0

    def add(self, summary: Summary) -> None:
        self.reached += summary["covered_lines"] + summary["covered_branches"]
        self.total += summary["num_statements"] + summary["num_branches"]

    @property
    def percent(self) -> float:
        """Rounded down to a tenth: 100 means everything."""
        return math.floor(1000 * self.reached / self.total) / 10 if self.total else 100.0


@dataclass(frozen=True, slots=True)
class Floors:
    """Percentages by room, and the modules that are pure: files, or folders with all they have."""

    rooms: Mapping[str, int]
    pure: tuple[str, ...]

    def is_pure(self, module: str) -> bool:
        return any(module == pure or module.startswith(f"{pure}/") for pure in self.pure)

    def room_of(self, module: str) -> str:
        room = module.partition("/")[0]
        return f"{room} (pure)" if self.is_pure(module) else room


def read_floors(path: Path) -> Floors:
    found = tomllib.loads(path.read_text())
    return Floors(found["floors"], tuple(found["pure"]))


def write_floors(path: Path, floors: Floors) -> None:
    """Replace the table of floors; what stands above it stays."""
    head = path.read_text().partition("[floors]")[0]
    rooms = (f"{json.dumps(room)} = {floor}\n" for room, floor in sorted(floors.rooms.items()))
    path.write_text(f"{head}[floors]\n{''.join(rooms)}")


def measure(files: Mapping[str, FileReport], floors: Floors) -> dict[str, Coverage]:
    rooms: dict[str, Coverage] = {}
    for path, report in files.items():
        module = Path(path).relative_to(PACKAGE).as_posix()
        rooms.setdefault(floors.room_of(module), Coverage()).add(report["summary"])
    return rooms


def problems(measured: Mapping[str, Coverage], floors: Floors) -> Iterator[str]:
    for room, coverage in sorted(measured.items()):
        floor = floors.rooms.get(room)
        if floor is None:
            percent = math.floor(coverage.percent)
            yield f"{room} has no floor in {FLOORS.name}: add it with {percent}"
        elif coverage.percent < floor:
            yield f"{room}: {coverage.percent} %, below its floor of {floor} %: add tests"
    for room in sorted(floors.rooms.keys() - measured.keys()):
        yield f"{room} is gone: remove it from {FLOORS.name}"


def raised(measured: Mapping[str, Coverage], floors: Floors) -> dict[str, int]:
    return {
        room: max(floor, math.floor(measured[room].percent))
        for room, floor in floors.rooms.items()
        if room in measured
    }


def missing(files: Mapping[str, FileReport], floors: Floors) -> Iterator[str]:
    for path, report in sorted(files.items()):
        if floors.is_pure(Path(path).relative_to(PACKAGE).as_posix()):
            branches = [f"{start}->{end}" for start, end in report["missing_branches"]]
            if found := [*map(str, report["missing_lines"]), *branches]:
                yield f"{path}: {', '.join(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="raise floors, never lower one")
    parser.add_argument("--missing", action="store_true", help="list gaps of pure rooms")
    arguments = parser.parse_args()
    floors = read_floors(FLOORS)
    files: Mapping[str, FileReport] = json.loads(REPORT.read_text())["files"]
    measured = measure(files, floors)
    if arguments.missing:
        print(*missing(files, floors), sep="\n")
        return 0
    if arguments.update:
        floors = Floors(raised(measured, floors), floors.pure)
        write_floors(FLOORS, floors)
    for room, coverage in sorted(measured.items()):
        print(f"{room:24} {coverage.percent:6.1f} %")
    found = list(problems(measured, floors))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
