"""Entries of a coordinator's log: who wrote them."""

from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.model import ProducerEpoch, ProducerId

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(1))


def test_a_producer_is_another_in_its_next_epoch() -> None:
    following = ProducerIdentity(ProducerId(7), ProducerEpoch(2))
    assert following != PRODUCER
    assert {PRODUCER: "old", following: "new"}[PRODUCER] == "old"
    assert str(following) == "7/2"


def test_an_entry_is_the_coordinators_own_unless_it_names_a_producer() -> None:
    assert Entry(b"key", None).producer is None
    assert Entry(b"key", b"value", PRODUCER).producer == PRODUCER
    assert TransactionEnded(PRODUCER, is_committed=False).producer == PRODUCER
