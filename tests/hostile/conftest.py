"""One broker per worker for the attacks that need no settings of their own."""

from collections.abc import Callable, Iterator

import pytest

from hostile.attacked_broker import AttackedBroker, attacked_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedBroker]:
    """It must survive every attack, and all of them together."""
    with attacked_broker(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Figures of a test, shown in the terminal's summary. They never decide it."""
    name = request.node.name
    return lambda line: request.node.user_properties.append(("figures", f"{name}: {line}"))


@pytest.fixture(autouse=True)
def _defects_belong_to_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test during which the broker's log told of a defect is the one that fails."""
    yield
    if "broker" in request.fixturenames:
        running = request.getfixturevalue("broker")
        assert running.process.poll() is None, running.log.read_text()[-4000:]
        assert running.defects() == []
