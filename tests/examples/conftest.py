"""One broker for all examples that are given an address."""

from collections.abc import Iterator

import pytest

from ottla import testing


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[str]:
    with testing.broker() as address:
        yield address
