"""The results for people: a table on the terminal, the same in the documentation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.measures import Metric
from bench.results import Results
from bench.rows import METRICS

EVEN: Final = 1.05  # closer than five percent is no difference on a shared machine
US: Final = "ottla"
RIVALS: Final = ("before", "kafka")  # the first that takes part is compared with


class Markers(NamedTuple):
    """The two lines of a page between which a run writes its figures."""

    begin: str
    end: str


ONE_NODE: Final = Markers(
    "<!-- bench:begin (written by `make bench`; do not edit) -->", "<!-- bench:end -->"
)
CLUSTER: Final = Markers(
    "<!-- bench-cluster:begin (written by `make bench CLUSTER=1`; do not edit) -->",
    "<!-- bench-cluster:end -->",
)


def terminal_table(results: Results, metrics: Sequence[Metric] = METRICS) -> str:
    """Columns of equal width; ratio and verdict are Ottla against its rival."""
    table = _table(results, metrics)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for line in table:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join((first, *rest)))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join((*lines, "", *_facts(results), *_notes(results)))


def markdown_section(results: Results, metrics: Sequence[Metric], markers: Markers) -> str:
    """Conditions, durability modes, table and what went wrong, between two markers."""
    head, *body = _table(results, metrics)
    lines = [f"* {fact}" for fact in _facts(results)]
    lines += ["", "| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(_bold_behind(line)) + " |" for line in body]
    lines += ["", *(f"* {note}" for note in _notes(results))]
    return "\n".join((markers.begin, *lines, markers.end))


def rewrite(
    page: Path,
    results: Results,
    metrics: Sequence[Metric] = METRICS,
    markers: Markers = ONE_NODE,
) -> None:
    """Put the section between the markers of an existing page."""
    before, _, rest = page.read_text().partition(markers.begin)
    _, found, after = rest.partition(markers.end)
    if not found:
        raise ValueError(f"{page} has no markers to write between")
    page.write_text(before + markdown_section(results, metrics, markers) + after)


def format_value(value: float | None) -> str:
    """Three significant digits, thousands separated; nothing for nothing."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def verdict(metric: Metric, ours: float, theirs: float) -> str:
    """`ahead`, `even` or `behind`, seen from Ottla."""
    gain = ours / theirs if metric.higher_is_better else theirs / ours
    if gain >= EVEN:
        return "ahead"
    return "even" if gain > 1 / EVEN else "behind"


def _table(results: Results, metrics: Sequence[Metric]) -> list[list[str]]:
    names = [contestant.name for contestant in results.contestants]
    titles = {contestant.name: contestant.title for contestant in results.contestants}
    rival = next((name for name in RIVALS if name in names and US in names), None)
    head = ["", "unit", *titles.values()]
    table = [head if rival is None else [*head, f"{titles[US]}/{titles[rival]}", ""]]
    for metric in metrics:
        if metric.name not in results.samples:
            continue
        line = [metric.title, metric.unit]
        line += [format_value(_value(results, metric, name)) for name in names]
        table.append(line if rival is None else [*line, *_comparison(results, metric, rival)])
    return table


def _value(results: Results, metric: Metric, server: str) -> float | None:
    """What stands for all samples of a metric: their median, or the worst of them."""
    if metric.of_worst:
        return results.largest(metric.name, server)
    return results.median(metric.name, server)


def _comparison(results: Results, metric: Metric, rival: str) -> list[str]:
    ours, theirs = _value(results, metric, US), _value(results, metric, rival)
    if ours is None or theirs is None or ours <= 0 or theirs <= 0:
        return ["-", ""]
    return [f"{ours / theirs:.2f}x", verdict(metric, ours, theirs)]


def _bold_behind(line: list[str]) -> list[str]:
    return ["**behind**" if cell == "behind" else cell for cell in line]


def _rounds(results: Results) -> str:
    most, fewest = results.rounds, min(results.fewest_rounds(), results.rounds)
    if most == 1:
        return "one round only"
    if fewest == most:
        return f"medians of {most} rounds"
    return f"medians of {fewest} to {most} rounds"


def _facts(results: Results) -> list[str]:
    """The conditions, and what an acknowledgement meant for each server."""
    facts = [f"{name}: {value}" for name, value in results.conditions.items()]
    return facts + [f"{c.title} {c.version}: {c.durability}" for c in results.contestants]


def _notes(results: Results) -> list[str]:
    noisy, every = results.noisy_count()
    notes = [_rounds(results)]
    if noisy:
        notes.append(
            f"{noisy} of {every} samples were taken while other processes used more than half a "
            "core; they are set aside where at least half of a row's samples were quiet"
        )
    notes += [f"left out: {reason}" for reason in results.left_out]
    notes += [f"failed: {failure}" for failure in results.failures]
    return notes
