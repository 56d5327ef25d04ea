"""kafkajs, 23 scenarios on Ottla and on Kafka's broker."""

from typing import Final

import pytest

from compat import scenario_program
from compat.apache import ApacheBroker
from compat.ottla_broker import OttlaBroker
from compat.peers import CACHE

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafkajs")]

PROGRAM: Final = ("node", str(CACHE / "kafkajs" / "main.js"))
SCENARIOS: Final = (
    "a_group_goes_on_where_it_was",
    "a_group_shares_partitions",
    "a_topic_is_made_by_its_first_record",
    "a_topic_is_made_described_and_deleted",
    "a_topic_that_exists_is_refused",
    "acks_all",
    "acks_none",
    "acks_one",
    "an_idempotent_producer_writes_once",
    "groups_are_listed_described_and_deleted",
    "keys_choose_partitions",
    "offsets_are_listed_by_time_and_records_deleted",
    "offsets_move_with_their_transaction",
    "partitions_are_added",
    "records_keep_everything_with_gzip",
    "records_keep_everything_with_none",
    "seek_and_pause",
    "settings_are_described_and_changed",
    "several_topics_in_one_request",
    "the_cluster_is_described",
    "there_are_no_rules",
    "too_large_is_refused",
    "transactions_are_whole_or_nothing",
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
