"""Spark's reports of progress as values, and as figures for Prometheus."""

import pytest

pytest.importorskip("pyspark")

from ottla.spark.progress import BatchDone, batch_done, lag_of, source_metrics
from ottla.spark.stream_metrics import StreamMetrics
from ottla.telemetry import exposition


def report(**more: object) -> dict[str, object]:
    source = {
        "endOffset": {"orders": {"0": 5, "1": 7}},
        "latestOffset": {"orders": {"0": 9, "1": 7}},
    }
    return {
        "id": "1-2",
        "name": "archive-orders",
        "batchId": 3,
        "numInputRows": 12,
        "durationMs": {"triggerExecution": 250, "addBatch": 200},
        "sources": [source],
        **more,
    }


def test_a_report_becomes_a_batch() -> None:
    assert batch_done(report()) == BatchDone(
        query="archive-orders", batch_id=3, rows=12, lag=4, duration_ms=250
    )


def test_a_query_without_a_name_goes_by_its_id() -> None:
    assert batch_done(report(name=None)).query == "1-2"


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ('{"t": {"0": 1}}', '{"t": {"0": 4}}', 3),
        ({"t": {"0": 4}}, {"t": {"0": 3}}, 0),
        ({"t": {"0": 4}}, {"t": {"0": 4, "1": 6}}, 6),
        ({"logOffset": 3}, {"logOffset": 4}, None),
        (None, None, None),
        ("3", "not JSON", None),
    ],
)
def test_lag_is_what_lies_beyond_a_batch(end: object, latest: object, lag: int | None) -> None:
    assert lag_of({"endOffset": end, "latestOffset": latest}) == lag


def test_metrics_are_named_as_sparks_connector_names_them() -> None:
    end, latest = {"t": {"0": 4, "1": 0}}, {"t": {"0": 5, "1": 6}}
    assert source_metrics({"endOffset": end, "latestOffset": latest}) == {
        "minOffsetsBehindLatest": "1",
        "maxOffsetsBehindLatest": "6",
        "avgOffsetsBehindLatest": "3.5",
    }
    assert source_metrics({"endOffset": {"logOffset": 3}, "latestOffset": None}) == {}


def test_sources_that_cannot_tell_do_not_hide_those_that_can() -> None:
    other = {"endOffset": {"logOffset": 1}, "latestOffset": None}
    sources = report()["sources"]
    assert isinstance(sources, list)
    assert batch_done(report(sources=[other, *sources])).lag == 4
    assert batch_done(report(sources=[other])).lag is None


def test_figures_add_up_and_show_the_last_state() -> None:
    figures = StreamMetrics()
    for lag, duration_ms in ((9, 500), (4, 250)):
        figures.note(BatchDone(query="q", batch_id=0, rows=3, lag=lag, duration_ms=duration_ms))
    assert figures.totals() == (2, 6)
    page = exposition(figures.collect()).decode()
    for line in (
        'ottla_pipeline_batches_total{query="q"} 2.0',
        'ottla_pipeline_rows_total{query="q"} 6.0',
        'ottla_pipeline_batch_seconds_total{query="q"} 0.75',
        'ottla_pipeline_lag{query="q"} 4.0',
        'ottla_pipeline_last_batch_seconds{query="q"} 0.25',
    ):
        assert line in page
