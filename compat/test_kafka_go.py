"""kafka-go (segmentio), 26 scenarios on Ottla and on Kafka's broker."""

from typing import Final

import pytest

from compat import scenario_program
from compat.apache import ApacheBroker
from compat.ottla_broker import OttlaBroker
from compat.peers import CACHE

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka-go")]

PROGRAM: Final = (str(CACHE / "kafka_go"),)
SCENARIOS: Final = (
    "a_connection_reads_and_writes",
    "a_group_goes_on_where_it_was",
    "a_group_shares_partitions",
    "a_member_takes_over",
    "a_reader_waits_for_what_comes",
    "a_topic_is_made_by_its_first_record",
    "a_topic_is_made_described_and_deleted",
    "a_topic_that_exists_is_refused",
    "a_transaction_begins_and_ends",
    "acks_all",
    "acks_none",
    "acks_one",
    "groups_and_their_offsets_are_deleted",
    "groups_are_listed_and_described",
    "keys_choose_partitions",
    "offsets_are_listed",
    "offsets_of_an_aborted_transaction_are_gone",
    "partitions_are_added",
    "records_keep_everything_with_gzip",
    "records_keep_everything_with_lz4",
    "records_keep_everything_with_none",
    "records_keep_everything_with_snappy",
    "records_keep_everything_with_zstd",
    "seek_by_offset_and_time",
    "settings_are_described_and_changed",
    "too_large_is_refused",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, ottla: OttlaBroker) -> None:
    scenario_program.play(PROGRAM, ottla.address, scenario)


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_on_kafka(scenario: str, apache: ApacheBroker) -> None:
    """So that a scenario says what Kafka does, not what we believe."""
    scenario_program.play(PROGRAM, apache.address, scenario)


def test_the_list_of_scenarios_is_complete() -> None:
    assert list(SCENARIOS) == scenario_program.list_scenarios(PROGRAM)
