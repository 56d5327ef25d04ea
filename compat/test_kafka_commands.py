"""Kafka's command line tools, the same commands on Kafka's broker and on Ottla's.

Each must end with the same exit code and print the same lines, but for numbers and ids.
"""

import signal

import pytest

from compat.apache import ApacheBroker
from compat.kafka_tools import Command, Outcome, Tools, read_commands
from compat.ottla_broker import OttlaBroker

COMMANDS, FILES = read_commands()
SAME = {"log_segment_delete_delay_ms": 0}  # as ApacheBroker has it
Pair = tuple[Outcome, Outcome]

pytestmark = [
    pytest.mark.compat,
    pytest.mark.needs("kafka"),
    pytest.mark.timeout(1800),  # the first test waits for the whole table
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """What Kafka's broker and Ottla's made of each command; later ones build on earlier ones."""
    directory = tmp_path_factory.mktemp("commands")
    tools = Tools(directory / "tools", FILES)
    try:
        with (
            ApacheBroker(directory / "apache") as apache,
            OttlaBroker(directory / "ottla", "--node-id=1", **SAME) as ottla,
        ):
            found = {}
            for one in COMMANDS:
                on_apache = tools.run(apache.address, one)
                found[one.name] = on_apache, tools.run(ottla.address, one)
            ottla.end(signal.SIGTERM)
            return found
    finally:
        tools.close()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_command(command: Command, outcomes: dict[str, Pair]) -> None:
    on_apache, on_ottla = outcomes[command.name]
    assert on_apache.status is not None, f"hangs on Kafka's own broker: {on_apache}"
    assert command.shape(on_ottla) == command.shape(on_apache), f"{on_ottla}\n{on_apache}"
