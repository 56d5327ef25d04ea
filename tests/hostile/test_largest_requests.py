"""A request of every API at its largest, beside somebody who produces: nobody waits for it long.

`make test` has smaller limits and with them smaller requests: what must come back does not depend
on them. `make nightly` has those that a broker has, and counts how long its loop was busy.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostile.attacked_broker import MIB, AttackedBroker, attacked_broker
from hostile.largest_requests import LargestRequest, largest_requests, prepare
from hostile.waiting import Bystander, Cost, bystander_of, measure
from ottla.config import BrokerConfig

# In proportion to what a broker has; Produce's frames are those of small clients.
SMALL_LIMITS = {
    "max.request.elements": "2000",
    "max.plain.request.bytes": "200000",
    "socket.request.max.bytes": "1000000",
}
SMALL_MEMORY_BYTES = 64 * MIB
MEMORY_BYTES = 700 * MIB
WORK_S_MAX = 1.0
# Written once a minute, for every log: a second of work with a thousand of them, for no request.
NO_CHECKPOINTS = "log.flush.offset.checkpoint.interval.ms=3600000"
WAIT_S = 0.5  # for an answer to a request that may have to wait for something
REFUSAL_S = 60.0  # for that to a request that has to wait for nothing
REFUSAL_BYTES_MAX = 1000
LONG_S = 20  # the same for one that is large: then its client leaves
SHOWN = 25


def assert_fate(case: LargestRequest, cost: Cost) -> None:
    """Nobody is kept waiting; what is too much is refused with an error, or closes."""
    assert cost.end in {"answered", "waits", "closed"}, cost
    if not case.limit.is_allowed:
        assert cost.end != "waits", cost
        assert cost.answered_bytes < REFUSAL_BYTES_MAX, f"not refused: {cost}"


def costs(
    broker: AttackedBroker,
    bystander: Bystander,
    cases: list[LargestRequest],
    patience_s: float,
) -> Iterator[tuple[LargestRequest, Cost]]:
    for case in cases:
        wait_s = patience_s if case.limit.is_allowed else REFUSAL_S
        cost = measure(broker, bystander, case.name, case.make(), patience_s=wait_s)
        assert_fate(case, cost)
        yield case, cost


@pytest.mark.slow
def test_no_request_of_any_api_costs_the_others_their_broker(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    limits = BrokerConfig().override(SMALL_LIMITS)
    settings = [f"{name}={value}" for name, value in SMALL_LIMITS.items()]
    with attacked_broker(tmp_path, *settings) as broker:
        scene = prepare(broker)
        newest = list(newest_of_each(largest_requests(broker, scene, limits)))
        assert len({case.key for case in newest}) > 30
        with bystander_of(broker) as bystander:
            found = []
            for case, cost in costs(broker, bystander, newest, WAIT_S):
                found.append(cost)
                assert cost.end != "closed" or not case.limit.is_allowed, cost
                assert cost.grown_bytes < SMALL_MEMORY_BYTES, cost
            assert bystander.trips > len(found)  # its connection was served all the time
    worst = max(found, key=lambda cost: cost.worked_s)
    report(f"{len(found)} requests; the worst: {worst}")


def newest_of_each(cases: list[LargestRequest]) -> Iterator[LargestRequest]:
    """Of every API and every field in its newest version: as large as may be, and larger."""
    newest = {case.key: 0 for case in cases}
    for case in cases:
        newest[case.key] = max(newest[case.key], case.version)
    for case in cases:
        if case.version == newest[case.key] and "known" not in case.name:
            yield case


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_no_request_of_any_api_keeps_the_loop_busy_for_a_second(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    """The whole table, worst first. Each API has a broker of its own: some leave things behind."""
    rows: list[Cost] = []
    directories = (tmp_path / str(number) for number in itertools.count())
    with attacked_broker(new(next(directories))) as broker:
        keys = list(dict.fromkeys(c.key for c in largest_requests(broker, prepare(broker))))
    for key in keys:
        with attacked_broker(new(next(directories)), NO_CHECKPOINTS) as broker:
            cases = [c for c in largest_requests(broker, prepare(broker)) if c.key is key]
            with bystander_of(broker) as bystander:
                rows += [cost for _, cost in costs(broker, bystander, cases, LONG_S)]
    rows.sort(key=lambda cost: -cost.worked_s)
    report("\n".join(["the worst requests", *map(str, rows[:SHOWN])]))
    assert [str(row) for row in rows if row.worked_s > WORK_S_MAX] == []
    assert [str(row) for row in rows if row.grown_bytes > MEMORY_BYTES] == []


def new(directory: Path) -> Path:
    directory.mkdir()
    return directory
