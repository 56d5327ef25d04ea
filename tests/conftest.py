"""What tests measured, shown at the end of a run. Figures never decide a test."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        text
        for outcome in ("passed", "failed")
        for done in terminalreporter.getreports(outcome)
        for name, text in done.user_properties
        if name == "figures" and done.when == "call"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(str(line))
