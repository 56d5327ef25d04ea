"""The pytest fixture `ottla_broker`: the address of a real broker, new for every test."""

from collections.abc import Iterator, Mapping

import pytest


@pytest.fixture
def ottla_settings() -> Mapping[str, str]:
    """Broker settings for `ottla_broker`; override this fixture to change them."""
    return {}


@pytest.fixture
def ottla_broker(ottla_settings: Mapping[str, str]) -> Iterator[str]:
    """HOST:PORT of a broker for this test only, on a temporary directory."""
    # Imported on first use: pytest loads every installed plugin for every project.
    from ottla import testing  # noqa: PLC0415

    with testing.broker(ottla_settings) as address:
        yield address
