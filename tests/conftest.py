"""What tests measured, shown at the end of a run. Figures never decide a test."""

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow at everything: neither decides a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


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
