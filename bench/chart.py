"""The README's picture: a few rows that people ask about, one small panel each."""

from pathlib import Path
from typing import Any, Final

from bench.measures import Metric
from bench.report import format_value
from bench.results import Results
from bench.rows import METRICS

PANELS: Final = (
    ("produce.1000.default", "Produce 1 KB"),
    ("consume.1000.default", "Consume 1 KB"),
    ("requests.rate", "One-record requests"),
    ("produce.1000.cpu", "CPU per GB produced"),
    ("latency.p99.1000", "p99 at 1,000 msg/s"),
    ("latency.p99.beside", "p99 beside a bulk writer"),
    ("footprint.start", "Start to first ack"),
    ("footprint.loaded", "Memory after 1 GB"),
)
COLUMNS: Final = 4
OURS: Final = "#d1495b"
THEIRS: Final = "#8d99ae"


def draw(results: Results, target: Path) -> None:
    """Write an SVG; the same results give the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ottla", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    metrics = {metric.name: metric for metric in METRICS}
    panels = [(metrics[name], title) for name, title in PANELS if name in results.samples]
    rows = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(11, 1.9 * rows + 0.4), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (metric, title) in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, results, metric, title)
    figure.suptitle(_caption(results), fontsize=8, y=0.995)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _draw_panel(axis: Any, results: Results, metric: Metric, title: str) -> None:
    bars = [
        (contestant, value)
        for contestant in reversed(results.contestants)
        if (value := results.median(metric.name, contestant.name)) is not None
    ]
    better = "higher" if metric.higher_is_better else "lower"
    axis.set_title(f"{title}\n{metric.unit}, {better} is better", fontsize=8)
    axis.barh(
        [contestant.title for contestant, _ in bars],
        [value for _, value in bars],
        color=[OURS if contestant.name == "ottla" else THEIRS for contestant, _ in bars],
    )
    for index, (_, value) in enumerate(bars):
        axis.annotate(f" {format_value(value)}", (max(value, 0), index), va="center", fontsize=7)
    axis.set_xlim(0, max(value for _, value in bars) * 1.35)
    axis.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def _caption(results: Results) -> str:
    versions = ", ".join(f"{c.title} {c.version}" for c in results.contestants)
    machine = f"{results.conditions['CPU']}, {results.conditions['date']}"
    return (
        f"{versions}; page-cache durability for all; {machine}; medians of {results.rounds} rounds"
    )
