"""One broker for all tests of this folder."""

from collections.abc import Iterator

import pytest

from cli.processes import Ottla, RunningBroker, call_ottla, start_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all tests; they keep out of each other's way by their topics' names."""
    running = start_broker(
        tmp_path_factory.mktemp("broker") / "data",
        *("--set", "group.initial.rebalance.delay.ms=0"),
        *("--set", "group.min.session.timeout.ms=1000"),
    )
    yield running
    assert running.stop() == 0


@pytest.fixture
def ottla(broker: RunningBroker) -> Ottla:
    """Runs a command against the broker."""
    return lambda *arguments, **more: call_ottla(*arguments, broker=broker.address, **more)
