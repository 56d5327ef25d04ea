"""The pytest fixture `ottla_broker`: the address of a real broker, new for every test."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def ottla_broker() -> Iterator[str]:
    """HOST:PORT of a broker of its own for this test, on a temporary directory."""
    # Imported when a test asks for it: pytest loads every installed plugin for every project.
    from ottla import testing  # noqa: PLC0415

    with testing.broker() as address:
        yield address
