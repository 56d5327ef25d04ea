"""Dashboard and alerts in deploy/ name only metrics and labels that a running broker has."""

import asyncio
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tools.write_tables import observe

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
DASHBOARD: Final = DEPLOY / "grafana" / "ottla.json"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
SCRAPING: Final = DEPLOY / "prometheus" / "prometheus.yml"
SCRAPED_LABELS: Final = frozenset({"job", "instance"})  # Prometheus adds them to every sample
PROMETHEUS_METRICS: Final = {"up": SCRAPED_LABELS}
SEVERITIES: Final = {"critical", "warning", "info"}

_IGNORED: Final = re.compile(r'"[^"]*"|\[[^\]]*\]')  # strings and ranges
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?")
_WORDS: Final = {"and", "or", "unless", "bool", "offset", "on", "by"}
_SAMPLE: Final = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ", re.MULTILINE)
_TEMPLATE_LABEL: Final = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


@pytest.fixture(scope="module")
def page() -> dict[str, frozenset[str]]:
    """Every sample of a running broker's page, with its labels."""
    found: dict[str, frozenset[str]] = dict(PROMETHEUS_METRICS)
    for name, labels in _SAMPLE.findall(asyncio.run(observe()).metrics):
        found[name] = found.get(name, SCRAPED_LABELS) | set(re.findall(r'(\w+)="', labels))
    return found


def references(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Metrics of an expression, each with the labels that it has to have."""
    plain = _IGNORED.sub("", expression)
    grouped = {label.strip() for labels in _GROUPING.findall(plain) for label in labels.split(",")}
    for name, matchers, is_call in _SELECTOR.findall(_GROUPING.sub("", plain)):
        if not is_call and name not in _WORDS:
            yield name, grouped | set(re.findall(r"(\w+)\s*(?:=|!)", matchers))


def wrong(expression: str, page: dict[str, frozenset[str]]) -> list[str]:
    """What a broker does not have of an expression."""
    named = list(references(expression))
    problems = [] if named else [f"{expression} names no metric"]
    for name, labels in named:
        if name not in page:
            problems.append(f"there is no {name}")
        elif missing := labels - page[name]:
            problems.append(f"{name} has no labels {sorted(missing)}")
    return problems


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    yaml = importlib.import_module("yaml")  # PySpark's pipelines bring it; it has no types
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(ottla_connections)", []),
        ("sum(ottla_conections)", ["there is no ottla_conections"]),
        ('up{job="x"} == 0', []),
        ("sum by (le) (rate(ottla_fsync_duration_seconds_bucket[5m]))", []),
        ("sum by (api) (ottla_connections)", ["ottla_connections has no labels ['api']"]),
        ('ottla_requests_total{apis="x"} > 1', ["ottla_requests_total has no labels ['apis']"]),
        ("vector(1)", ["vector(1) names no metric"]),
    ],
)
def test_the_check_itself_finds_what_is_wrong(
    expression: str, problem: list[str], page: dict[str, frozenset[str]]
) -> None:
    assert wrong(expression, page) == problem


def test_every_panel_shows_metrics_that_exist(page: dict[str, frozenset[str]]) -> None:
    found = panels()
    assert len(found) > 20
    for panel in found:
        for target in panel["targets"]:
            assert wrong(target["expr"], page) == [], panel["title"]
            by = {label for _, labels in references(target["expr"]) for label in labels}
            shown = set(_TEMPLATE_LABEL.findall(target["legendFormat"]))
            assert shown <= by | SCRAPED_LABELS, panel["title"]


def test_panels_have_a_place_a_unit_and_an_id_of_their_own() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    taken = set[tuple[int, int]]()
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_variables_of_the_dashboard_are_labels_of_a_metric_that_exists(
    page: dict[str, frozenset[str]],
) -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queries = [one["query"] for one in variables if one["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(",")
        assert wrong(selector, page) == []
        assert label.strip() in SCRAPED_LABELS


def test_every_alert_is_about_metrics_that_exist_and_says_what_to_do(
    page: dict[str, frozenset[str]],
) -> None:
    found = alerts()
    assert len({alert["alert"] for alert in found}) == len(found) > 10
    for alert in found:
        assert wrong(alert["expr"], page) == [], alert["alert"]
        assert alert["labels"]["severity"] in SEVERITIES, alert["alert"]
        texts = alert["annotations"]
        assert texts["summary"].endswith(".")
        assert texts["description"].endswith(".")
        ((name, _), *_) = references(alert["expr"])
        named = set(_TEMPLATE_LABEL.findall(texts["summary"])) - {"value"}
        assert named <= page[name], alert["alert"]


def test_alerts_expect_the_job_that_the_example_scrapes() -> None:
    yaml = importlib.import_module("yaml")
    (job,) = yaml.safe_load(SCRAPING.read_text())["scrape_configs"]
    jobs = {name for alert in alerts() for name in re.findall(r'job="(\w+)"', alert["expr"])}
    assert jobs == {job["job_name"]}
