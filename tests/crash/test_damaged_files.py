"""Metadata with one flipped bit, one file or one directory gone: named in an error, or not needed.

`OTTLA_CRASH_DAMAGES` says how many cases are drawn of those there are, `all` takes every one.
"""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crash import damaged
from crash.damaged import Fault, Prepared

_CASES: Final = os.environ.get("OTTLA_CRASH_DAMAGES", "40")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Prepared]:
    return asyncio.run(damaged.prepare(tmp_path_factory.mktemp("prepared")))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("end", [0, 1], ids=["killed", "stopped"])
def test_no_fault_of_a_small_file_loses_a_record_in_silence(
    prepared: tuple[Prepared, Prepared],
    end: int,
    tmp_path: Path,
    rng: Random,
    report: Callable[[str], None],
) -> None:
    faults = damaged.faults(prepared[end], rng)
    drawn = faults if _CASES == "all" else rng.sample(faults, min(int(_CASES) // 2, len(faults)))
    counts = Counter[str]()
    wrong = list[str]()
    for fault in drawn:
        outcome, problem = damaged.run_case(prepared[end], fault, tmp_path)
        counts["refused" if outcome.refused else "served"] += 1
        if problem is not None:
            wrong.append(f"{fault}: {problem}")
    report(f"{len(drawn)} of {len(faults)} faults: {dict(counts)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("end", [0, 1], ids=["killed", "stopped"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(Path("meta.properties"), None), "meta.properties is missing"),
        (Fault(Path("meta.properties"), 20), "meta.properties is damaged"),
        (Fault(Path("cluster.sqlite"), None), "cluster.sqlite is missing or empty"),
    ],
    ids=str,
)
def test_what_cannot_be_trusted_is_refused_by_name(
    prepared: tuple[Prepared, Prepared], end: int, fault: Fault, expected: str, tmp_path: Path
) -> None:
    outcome, problem = damaged.run_case(prepared[end], fault, tmp_path)
    assert problem is None
    assert outcome.refused is not None
    assert expected in outcome.refused


def test_a_damaged_page_of_the_store_is_refused_by_name(
    prepared: tuple[Prepared, Prepared], tmp_path: Path
) -> None:
    """After a kill the journal may still have a sound copy of the page."""
    outcome, problem = damaged.run_case(prepared[1], Fault(Path("cluster.sqlite"), 20), tmp_path)
    assert problem is None
    assert outcome.refused is not None
    assert "cluster.sqlite" in outcome.refused


def test_a_lost_journal_is_noticed(prepared: tuple[Prepared, Prepared], tmp_path: Path) -> None:
    journal = Fault(Path("cluster.sqlite-wal"), None)
    outcome, problem = damaged.run_case(prepared[0], journal, tmp_path)
    assert problem is None
    assert outcome.refused is not None
    assert "went back" in outcome.refused


@pytest.mark.parametrize("at", [None, 0, 30, 55], ids=str)
def test_a_log_that_lost_its_topic_id_is_its_topics_by_name(
    prepared: tuple[Prepared, Prepared], tmp_path: Path, at: int | None
) -> None:
    fault = Fault(Path("orders-0/partition.metadata"), at)
    outcome, problem = damaged.run_case(prepared[1], fault, tmp_path)
    assert problem is None
    assert outcome.refused is None
    assert outcome.read == prepared[1].acked
    said = [vars(line) for line in outcome.lines if line.getMessage() == "topic id rewritten"]
    assert [line["tp"] for line in said] == ["orders-0"]


def test_a_sound_directory_is_served_whole(
    prepared: tuple[Prepared, Prepared], tmp_path: Path
) -> None:
    """Otherwise the tests above would prove nothing."""
    for one in prepared:
        unused = Fault(Path("deleted-records-checkpoint"), None)
        outcome, problem = damaged.run_case(one, unused, tmp_path)
        assert problem is None
        assert outcome.refused is None
        assert outcome.read.keys() == one.acked.keys()


@pytest.mark.parametrize("end", [0, 1], ids=["killed", "stopped"])
def test_every_directory_that_is_gone_is_named_and_no_offset_is_used_twice(
    prepared: tuple[Prepared, Prepared], end: int, tmp_path: Path
) -> None:
    directories = [path for path in prepared[end].path.iterdir() if path.is_dir()]
    assert len(directories) >= 5
    for path in directories:
        outcome, problem = damaged.run_case(prepared[end], Fault(Path(path.name), None), tmp_path)
        assert problem is None, path.name
        assert outcome.refused is None
        said = {line.getMessage() for line in outcome.lines if vars(line).get("tp") == path.name}
        assert {"log directory missing", "log damaged"} <= said


@pytest.mark.parametrize("end", [0, 1], ids=["killed", "stopped"])
def test_a_directory_that_is_gone_with_its_checkpoint_is_named(
    prepared: tuple[Prepared, Prepared], end: int, tmp_path: Path
) -> None:
    data = shutil.copytree(prepared[end].path, tmp_path / "data")
    Fault(Path("orders-0"), None).strike(data)
    Fault(Path("recovery-point-offset-checkpoint"), 20).strike(data)
    outcome = asyncio.run(damaged.start_damaged(data))
    assert (outcome.refused, outcome.defect) == (None, None)
    said = [line.getMessage() for line in outcome.lines if vars(line).get("tp") == "orders-0"]
    assert said == ["log missing, and with it the checkpoint of its end"]


@pytest.mark.parametrize("end", [0, 1], ids=["killed", "stopped"])
def test_every_list_of_aborted_transactions_that_is_gone_is_made_again(
    prepared: tuple[Prepared, Prepared], end: int, tmp_path: Path
) -> None:
    lists = sorted((prepared[end].path / "orders-0").glob("*.txnindex"))
    assert lists, "of sealed segments; that of the active one is in log-states"
    for path in lists:
        for at in (None, 0, path.stat().st_size - 1):
            fault = Fault(path.relative_to(prepared[end].path), at)
            assert damaged.run_case(prepared[end], fault, tmp_path)[1] is None, fault
