"""Logs that were found: which are opened when nothing decides about them."""

from ottla.model import TopicPartition, Uuid
from ottla.storage.found_logs import Fate, FoundLog, Verdict, expect_noted, keep_known

TP = TopicPartition("orders", 0)
ID = Uuid(bytes(range(16)))


def test_a_log_that_has_its_topics_id_is_opened() -> None:
    assert keep_known(FoundLog(TP, ID)) == Verdict(Fate.OPEN)


def test_a_log_that_does_not_say_whose_it_is_is_set_aside_with_the_reason() -> None:
    found = FoundLog(TP, None, "partition.metadata is damaged")
    verdict = keep_known(found)
    assert verdict == Verdict(Fate.SET_ASIDE, "partition.metadata is damaged")
    assert verdict.topic_id is None, "no id is made up for it"


def test_a_missing_log_is_expected_under_the_id_that_a_checkpoint_has() -> None:
    assert expect_noted(TP, ID) == ID
    assert expect_noted(TP, None) is None
