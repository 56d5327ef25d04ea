"""A run of compat/: peers are fetched or left out by name, outcomes are compared with the list."""

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from typing import Final

import pytest

from compat import peers, results

_NEEDS: Final = "needs"
_WRITE: Final = "--write-results"
_RUN = pytest.StashKey["Run"]()


class Run:
    """One run: the list that is checked in, what was left out, and what was seen."""

    def __init__(self) -> None:
        self.listed = results.read()
        self.left_out: dict[str, str] = {}
        self.needed_by: dict[str, list[str]] = defaultdict(list)
        self.seen: dict[str, dict[str, str]] = defaultdict(dict)
        self.deselected: dict[str, dict[str, str]] = defaultdict(dict)
        self.new_passes: list[str] = []

    def unlisted(self) -> list[str]:
        """Tests that ran and that the list does not know."""
        return [
            f"{part}::{test}"
            for part, outcomes in self.seen.items()
            for test, outcome in outcomes.items()
            if outcome != "skipped" and test not in self.listed.get(part, results.Part()).known
        ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_WRITE, action="store_true", help="write compat/results.toml anew")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(peer): left out by name if the peer cannot be had")
    config.stash[_RUN] = Run()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Tests that -k leaves out keep what the list says of them."""
    for item in items:
        part, test = _place(item.nodeid)
        item.config.stash[_RUN].deselected[part][test] = "skipped"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch what the chosen tests need; those whose peer cannot be had are skipped."""
    run = session.config.stash[_RUN]
    for item in session.items:
        for name in _needs(item):
            run.needed_by[name].append(item.nodeid)
    if session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    assert reporter is not None
    chosen = [name for name in peers.NAMES if name in run.needed_by]
    assert set(run.needed_by) == set(chosen), f"unknown peers: {set(run.needed_by) - set(chosen)}"
    run.left_out = peers.fetch(chosen, reporter.write_line)
    for item in session.items:
        for name in _needs(item):
            if name in run.left_out:
                reason = f"left out: {name}: {run.left_out[name]}"
                item.add_marker(pytest.mark.skip(reason=reason))
        part, test = _place(item.nodeid)
        if reason := run.listed.get(part, results.Part()).differs.get(test, ""):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


def _needs(item: pytest.Item) -> set[str]:
    return {name for mark in item.iter_markers(_NEEDS) for name in mark.args}


def _place(node_id: str) -> tuple[str, str]:
    """The part and the name of a test."""
    file, _, test = node_id.partition("::")
    return file.rpartition("/")[2].removeprefix("test_").removesuffix(".py"), test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    part, test = _place(item.nodeid)
    run = item.config.stash[_RUN]
    outcome = "failed" if report.failed or hasattr(report, "wasxfail") else report.outcome
    if hasattr(report, "wasxfail") and report.passed:
        outcome = "passed"
        run.new_passes.append(f"{part}::{test}")
    if report.when == "call" or outcome != "passed":
        run.seen[part][test] = outcome
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the list if asked; else tests that it does not know fail the run."""
    run = session.config.stash[_RUN]
    if session.config.getoption(_WRITE):
        seen = {part: {**run.deselected[part], **found} for part, found in run.seen.items()}
        results.LIST.write_text(results.render(results.merge(results.read(), seen)))
    elif run.unlisted() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    run = terminalreporter.config.stash[_RUN]
    write = terminalreporter.write_line
    terminalreporter.section("compat")
    for part, outcomes in sorted(run.seen.items()):
        counts = {word: list(outcomes.values()).count(word) for word in ("passed", "skipped")}
        failed = len(outcomes) - sum(counts.values())
        text = f"{counts['passed']} passed, {failed} differ or failed, {counts['skipped']} left out"
        write(f"{part}: {text}")
    for name, reason in run.left_out.items():
        count = len(run.needed_by[name])
        write(f"left out: {name} ({_count(count, 'test')}): {reason}")
    _write_all(write, "passes now, and is listed as different", run.new_passes)
    if not terminalreporter.config.getoption(_WRITE):
        _write_all(write, "not listed in compat/results.toml (WRITE=1 lists it)", run.unlisted())
    here = len(run.needed_by) - len(run.left_out)
    write(f"{_count(here, 'peer')} ran, {len(run.left_out)} left out")


def _write_all(write: object, what: str, tests: Iterable[str]) -> None:
    assert callable(write)
    for test in tests:
        write(f"{what}: {test}")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
