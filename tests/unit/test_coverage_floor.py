"""Floors of branch coverage: what is compared, and that they only rise."""

from pathlib import Path

from tools.coverage_floor import (
    FileReport,
    Floors,
    measure,
    missing,
    problems,
    raised,
    read_floors,
    write_floors,
)

FILES = {
    "src/ottla/cluster/image.py": FileReport(
        summary={
            "covered_lines": 10,
            "num_statements": 10,
            "covered_branches": 3,
            "num_branches": 4,
        },
        missing_lines=[],
        missing_branches=[[7, 9]],
    ),
    "src/ottla/cluster/state.py": FileReport(
        summary={
            "covered_lines": 10,
            "num_statements": 20,
            "covered_branches": 0,
            "num_branches": 0,
        },
        missing_lines=[5],
        missing_branches=[],
    ),
}
PURE = ("cluster/image.py",)


def test_pure_modules_of_a_room_are_counted_apart() -> None:
    measured = measure(FILES, Floors({}, PURE))
    assert {room: one.percent for room, one in measured.items()} == {
        "cluster (pure)": 92.8,
        "cluster": 50.0,
    }


def test_a_room_below_its_floor_without_one_or_gone_is_a_problem() -> None:
    floors = Floors({"cluster (pure)": 93, "storage": 80}, PURE)
    assert list(problems(measure(FILES, floors), floors)) == [
        "cluster has no floor in coverage.toml: add it with 50",
        "cluster (pure): 92.8 %, below its floor of 93 %: add tests",
        "storage is gone: remove it from coverage.toml",
    ]


def test_update_raises_floors_and_never_lowers_them() -> None:
    floors = Floors({"cluster (pure)": 95, "cluster": 40}, PURE)
    assert raised(measure(FILES, floors), floors) == {"cluster (pure)": 95, "cluster": 50}


def test_gaps_are_listed_for_pure_modules_only() -> None:
    assert list(missing(FILES, Floors({}, PURE))) == ["src/ottla/cluster/image.py: 7->9"]


def test_floors_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "coverage.toml"
    path.write_text('# Why.\npure = ["cluster/image.py"]\n\n[floors]\n')
    floors = Floors({"cluster": 50, "model.py (pure)": 100}, PURE)
    write_floors(path, floors)
    assert read_floors(path) == floors
    assert path.read_text().startswith("# Why.\n")
