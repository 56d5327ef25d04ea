"""What client libraries test for themselves, run as it is, agrees with the lists checked in.

Each finds a broker with the settings that the library gives to Apache Kafka for these tests.
"""

import signal
from pathlib import Path

import pytest

from compat import aiokafka_suite, client_suite, kafka_python_suite
from compat.ottla_broker import OttlaBroker

pytestmark = pytest.mark.compat


@pytest.mark.needs("kafka-python-tests")
def test_kafka_pythons_own_tests_do_what_the_list_says(tmp_path: Path) -> None:
    expected = client_suite.read_expected(kafka_python_suite.RESULTS, kafka_python_suite.LIBRARY)
    settings = {"num_partitions": 2, "group_min_session_timeout_ms": 1000}
    with OttlaBroker(tmp_path / "data", **settings) as broker:
        suite = kafka_python_suite.suite(tmp_path, broker.address)
        assert suite.run(expected.out_of_scope) == expected.outcomes
        broker.end(signal.SIGTERM)


@pytest.mark.needs("aiokafka-tests")
@pytest.mark.timeout(900)
def test_aiokafkas_own_tests_do_what_the_list_says(tmp_path: Path) -> None:
    expected = client_suite.read_expected(aiokafka_suite.RESULTS, aiokafka_suite.LIBRARY)
    settings = {"num_partitions": 2, "group_initial_rebalance_delay_ms": 0}
    with OttlaBroker(tmp_path / "data", **settings) as broker:
        suite = aiokafka_suite.suite(tmp_path, broker.address)
        assert suite.run(expected.out_of_scope) == expected.outcomes
        broker.end(signal.SIGTERM)
