"""The derived figures of docs/capacity.md follow from the measured ones on the same page."""

import re
from math import sqrt
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
IDLE_MS, MEMORY_BYTES, ELECTION_S = 200.0, float(1 << 30), 5.0  # the limits that the page names


def cells(line: str) -> list[str]:
    return [cell.strip(" *") for cell in line.strip().strip("|").split("|")]


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by their first cell."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("|")]
    return {first: rest for first, *rest in rows[2:]}


def number(text: str) -> float:
    found = re.match(r"[0-9.,]+", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


MEASURED = {name: number(values[0]) for name, values in table("Measured").items()}


def by_idle_cpu(brokers: int) -> float:
    """The partitions at which a broker's idle CPU reaches the limit."""
    left_ms = IDLE_MS - MEASURED["idle broker without replicas"] - fetches_ms(brokers)
    return left_ms * 1000 / MEASURED["idle replica"] * brokers / 3


def fetches_ms(brokers: int) -> float:
    rate = MEASURED["fetches of a follower from a leader"] * (brokers - 1)
    return rate * MEASURED["fetch between two brokers, both ends"] / 1000


def by_memory(brokers: int) -> float:
    left_bytes = MEMORY_BYTES - MEASURED["memory of a broker without replicas"] * (1 << 20)
    replicas_bytes = MEASURED["memory of an empty replica"] * 1024 * 3 / brokers
    return left_bytes / (replicas_bytes + MEASURED["partition in an image"])


def by_election(brokers: int) -> float:
    """The solution of 3 P / B / 63 · (P · look + 256 · decide) = 5 s."""
    commits = 3 / brokers / MEASURED["partitions in a commit"]
    square = commits * MEASURED["look whether a partition is settled"]
    linear = (
        commits
        * MEASURED["partitions decided about for a commit"]
        * MEASURED["decide about an unsettled partition"]
    )
    limit_us = ELECTION_S * 1e6
    return (sqrt(linear**2 + 4 * square * limit_us) - linear) / (2 * square)


@pytest.mark.parametrize(("column", "brokers"), [(0, 3), (1, 10), (2, 100)])
def test_what_brokers_carry_follows_from_what_was_measured(column: int, brokers: int) -> None:
    derived = {name: number(values[column]) for name, values in table("Derived").items()}
    limits = {
        "partitions, by idle CPU": by_idle_cpu(brokers),
        "partitions, by memory": by_memory(brokers),
        "partitions, by election": by_election(brokers),
    }
    partitions = min(limits.values())
    expected = {
        **limits,
        "partitions": partitions,
        "idle CPU of fetches alone": fetches_ms(brokers),
        "store, all partitions": partitions * MEASURED["partition in the store"] / 1e6,
        "a broker's start reads": partitions * MEASURED["read a partition from the store"] / 1e6,
    }
    assert derived == {
        name: pytest.approx(value, rel=0.02, abs=0.05) for name, value in expected.items()
    }
