"""Takes the place of aiokafka's `tests/conftest.py`, which starts Apache Kafka in Docker.

The same fixtures, with a broker that somebody else started at OTTLA_ADDRESS. What needs TLS, SASL,
Kerberos or access control lists finds None, and is out of scope.
"""

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Final

import pytest

KAFKA_VERSION: Final = "4.3.0"  # what tests for newer brokers look at


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    if not made.is_closed():
        made.call_soon(made.stop)
        made.run_forever()
        made.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="class")
def setup_test_class_serverless(
    request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop
) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    address = os.environ["OTTLA_ADDRESS"]
    host, _, port = address.rpartition(":")
    tested = request.cls
    tested.loop = loop
    tested.kafka_host, tested.kafka_port = host, int(port)
    tested.kafka_version = KAFKA_VERSION
    tested.hosts = [address]
    tested.kafka_ssl_port = tested.kafka_sasl_plain_port = tested.kafka_sasl_ssl_port = None
    tested.ssl_folder = tested.acl_manager = tested.kerberos_utils = tested.kafka_config = None
