"""kafka-python's own integration tests, from its source distribution, against a broker of ours."""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Final

from compat.client_suite import Suite, unpack
from compat.peers import HERE

RESULTS: Final = HERE / "kafka_python_results.toml"
LIBRARY: Final = "kafka-python"
KAFKA_VERSION: Final = "4.3"  # whose protocol versions the client shall use


def suite(directory: Path, address: str) -> Suite:
    """The source distribution, made complete with what it leaves out of its test package."""
    version = importlib.metadata.version(LIBRARY)
    unpack(f"kafka_python-{version}.tar.gz", directory)
    source = directory / f"kafka_python-{version}"
    (source / "test" / "__init__.py").touch()
    shutil.copy(HERE / "kafka_python_service.py", source / "test" / "service.py")
    return Suite(
        source=source,
        tests="test/integration",
        plugin="kafka_python_plugin",
        environment={
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_URI": f"kafka://{address}",
            "KAFKA_ROOT": str(source),  # must be a directory, even if nothing is started from it
        },
        run_s=280,
    )
