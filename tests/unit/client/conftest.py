"""Addresses for tests of the client."""

import socket

import pytest

from ottla.model import Endpoint


@pytest.fixture
def unused_endpoint() -> Endpoint:
    """Where nobody listens: a port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return Endpoint(*taken.getsockname())
