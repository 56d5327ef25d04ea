"""What client libraries test for themselves, run as it is, agrees with the lists checked in."""

from pathlib import Path

import pytest

from compat import aiokafka_suite, client_suite, kafka_python_suite
from compat.ottla_broker import OttlaBroker

pytestmark = pytest.mark.compat


def test_kafka_pythons_own_tests_do_what_the_list_says(
    as_suites_want_it: OttlaBroker, tmp_path: Path
) -> None:
    expected = client_suite.read_expected(kafka_python_suite.RESULTS, kafka_python_suite.LIBRARY)
    suite = kafka_python_suite.suite(tmp_path, as_suites_want_it.address)
    assert suite.run(expected.out_of_scope) == expected.outcomes


@pytest.mark.timeout(900)
def test_aiokafkas_own_tests_do_what_the_list_says(
    as_suites_want_it: OttlaBroker, tmp_path: Path
) -> None:
    expected = client_suite.read_expected(aiokafka_suite.RESULTS, aiokafka_suite.LIBRARY)
    suite = aiokafka_suite.suite(tmp_path, as_suites_want_it.address)
    assert suite.run(expected.out_of_scope) == expected.outcomes
