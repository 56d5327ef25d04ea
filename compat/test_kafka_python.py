"""kafka-python's own tests, run as they are, agree with the list that is checked in."""

from pathlib import Path

import pytest

from compat import kafka_python_suite
from compat.ottla_broker import OttlaBroker

pytestmark = pytest.mark.compat


def test_kafka_pythons_own_tests_do_what_the_list_says(ottla: OttlaBroker, tmp_path: Path) -> None:
    expected = kafka_python_suite.read_expected()
    source = kafka_python_suite.unpack(tmp_path)
    outcomes = kafka_python_suite.run(source, ottla.address, expected.out_of_scope)
    assert outcomes == expected.outcomes
