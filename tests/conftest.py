"""What holds for every test: sizes, skips that CI accepts, what is shown at the end of a run."""

import gc
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from blocking import blocking_calls_fail
from scheduling import GroupScheduling, group_of
from sizes import examples

# A busy machine is slow at everything: neither decides a test.
settings.register_profile(
    "patient",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

IN_CI: Final = os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}
# The only skips that CI accepts, by a part of their reason, each with why it cannot be had
# everywhere. Whatever else a test needs can be installed: in CI its absence is a failure.
ACCEPTED_SKIPS: Final = {
    "needs root": "a runner may give no root",
    "cannot be mounted here": "a container may have root and not the right to mount",
    "namespaces cannot be made here": "a container may have root and not the right to make them",
    "chattr: Operation not supported": "tmpfs and overlayfs have no immutable files",
    "chattr: Operation not permitted": "a container may lack CAP_LINUX_IMMUTABLE",
}
# Tools that tests are skipped without, by a part of the reason, each with how it is had.
TOOLS: Final = {
    "etcd is": "etcd (Debian: apt-get install etcd-server)",
    "nft is": "nft (Debian: apt-get install nftables)",
    "kcat": "kcat (Debian: apt-get install kcat)",
    "openssl": "openssl (Debian: apt-get install openssl)",
    "strace": "strace (Debian: apt-get install strace)",
    "compiled": "a C compiler (Debian: apt-get install gcc libc6-dev), then"
    " `pip install -e .` again",
}
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(autouse=True, scope="session")
def _no_blocking_calls_on_loops() -> Iterator[None]:
    """For all tests at once: replacing some sixty calls for each would take longer than most."""
    with blocking_calls_fail():
        yield


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Counts of a test, shown in the terminal's summary. They never decide it."""
    return lambda line: request.node.user_properties.append(("figures", line))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers share the tests, none that takes long is left for the end.

    The tests of a JVM come first, since one worker has them all, and then those marked `slow`.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=_begins_late)


def _begins_late(item: pytest.Item) -> tuple[bool, bool]:
    return group_of(item.nodeid) is None, item.get_closest_marker("slow") is None


def pytest_collection_finish() -> None:
    """Keep the collector from going through thousands of tests and modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    config.option.loadscopereorder = False  # the order of the tests is the order to begin in
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return report if hasattr(report, "wasxfail") else _without_silent_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return _without_silent_skip(report)


def _without_silent_skip(report: Report) -> Report:
    """The report, failed if CI has to run this test and it was skipped."""
    reason = _skip_reason(report) if report.skipped else ""
    if IN_CI and report.skipped and not any(part in reason for part in ACCEPTED_SKIPS):
        tools = [tool for part, tool in TOOLS.items() if part in reason]
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept ({reason}): " + (
            f"missing is {tools[0]}"
            if tools
            else "have tools/setup.sh install what is missing, or add the reason to ACCEPTED_SKIPS"
            " in tests/conftest.py"
        )
    return report


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    found = report.longrepr
    text = found[2] if isinstance(found, tuple) else str(found)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = [
        str(text)
        for outcome in ("passed", "failed")
        for done in terminalreporter.getreports(outcome)
        for name, text in done.user_properties
        if name == "figures" and done.when == "call"
    ]
    if figures:  # what tests measured: it never decides them
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)
    skipped = Counter(map(_skip_reason, terminalreporter.getreports("skipped")))
    why = "; ".join(f"{count} x {reason}" for reason, count in skipped.most_common())
    said = f"{skipped.total()} ({why})" if why else "none"
    terminalreporter.line(f"skipped: {said}")
