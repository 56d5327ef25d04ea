"""aiokafka's own tests of consumers, coordination and transactions against a broker of ours."""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Final

from compat.client_suite import Suite, unpack
from compat.peers import HERE

RESULTS: Final = HERE / "aiokafka_results.toml"
LIBRARY: Final = "aiokafka"
MODULES: Final = (
    "test_consumer",
    "test_coordinator",
    "test_pep492",
    "test_transactional_consumer",
    "test_transactional_producer",
)


def suite(directory: Path, address: str) -> Suite:
    """Its tests start Apache Kafka with Docker; fixtures of ours take the place of those."""
    version = importlib.metadata.version(LIBRARY)
    unpack(f"aiokafka-{version}.tests.tar.gz", directory)
    source = directory / f"aiokafka-{version}"
    shutil.copy(HERE / "aiokafka_fixtures.py", source / "tests" / "conftest.py")
    return Suite(
        source=source,
        tests="tests",
        modules=MODULES,
        plugin="aiokafka_plugin",
        environment={"OTTLA_ADDRESS": address},
        run_s=840,
    )
