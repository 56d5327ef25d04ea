"""What the text scenarios do not show: who is told what, and when time has to pass."""

from dataclasses import replace

from fakes.tickets import OWNER, FakeTicket
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.records import State, Transaction
from ottla.coordinator.transactions.transactions import (
    EPOCH_MAX,
    End,
    Identified,
    Init,
    NeedsProducerId,
    Transactions,
)
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition

TICKET = FakeTicket(4)
TP = TopicPartition("t", 0)
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def begun(*names: str, timeout_ms: int = 1000) -> Transactions:
    """Producer 7 of the first name, 8 of the second, and so on."""
    transactions = Transactions(OWNER)
    for number, name in enumerate(names or ("a",), start=7):
        init = Init(transactional_id=name, timeout_ms=timeout_ms, unused_id=ProducerId(number))
        transactions.init(TICKET, init, 0)
    return transactions


def open_since(transactions: Transactions, name: str, producer_id: int, now_ms: int) -> None:
    producer = ProducerIdentity(ProducerId(producer_id), ProducerEpoch(0))
    transactions.add(TICKET, name, producer, [TP], 2, now_ms)


def end(name: str = "a", *, commit: bool = True) -> End:
    return End(transactional_id=name, producer=PRODUCER, is_commit=commit, version=2)


def test_a_first_producer_needs_an_id_and_nothing_happens_without_one() -> None:
    transactions = Transactions(OWNER)
    init = Init(transactional_id="a", timeout_ms=1000)
    decision = transactions.init(TICKET, init, 0)
    assert decision.records == ()
    assert decision.responses == ((TICKET, NeedsProducerId()),)
    assert transactions.by_id == {}
    decision = transactions.init(TICKET, replace(init, unused_id=ProducerId(7)), 0)
    assert decision.responses == ((TICKET, Identified(ErrorCode.NONE, PRODUCER)),)


def test_the_client_and_the_owner_hear_of_an_end_together() -> None:
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    decision = transactions.end(TICKET, end(), 5)
    (prepared,) = decision.records
    assert [ticket for ticket, _ in decision.responses] == [TICKET, OWNER]
    assert decision.responses[1] == (OWNER, prepared)
    assert transactions.prepared() == [prepared]


def test_markers_are_of_the_version_that_ends_the_transaction() -> None:
    """Flink ends with version 0 what its producer, of version 2, had begun before it died."""
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    assert transactions.by_id["a"].version == 2
    (prepared,) = transactions.end(TICKET, replace(end(), version=0), 1).records
    assert isinstance(prepared, Transaction)
    assert (prepared.producer, prepared.version) == (PRODUCER, 0)


def test_only_what_is_prepared_is_completed_and_only_once() -> None:
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    ongoing = transactions.by_id["a"]
    assert transactions.complete(TICKET, ongoing, 1).responses == ((TICKET, False),)
    (prepared,) = transactions.end(TICKET, end(), 1).records
    assert isinstance(prepared, Transaction)
    other = replace(prepared, state=State.PREPARE_ABORT)
    assert transactions.complete(TICKET, other, 2).responses == ((TICKET, False),)
    assert transactions.complete(TICKET, prepared, 2).responses == ((TICKET, True),)
    assert transactions.complete(TICKET, prepared, 3).responses == ((TICKET, False),)
    assert transactions.by_id["a"].state is State.COMPLETE_COMMIT


def test_each_open_transaction_has_its_own_deadline() -> None:
    transactions = begun("a", "b", "c")
    assert transactions.next_deadline_ms() is None
    open_since(transactions, "b", 8, 100)
    open_since(transactions, "a", 7, 50)
    open_since(transactions, "c", 9, 200)
    assert transactions.next_deadline_ms() == 1050
    assert transactions.pass_time(1049) == ((), ())
    decision = transactions.pass_time(1100)
    assert [record.transactional_id for record in decision.records] == ["a", "b"]
    assert {ticket for ticket, _ in decision.responses} == {OWNER}
    assert transactions.next_deadline_ms() == 1200


def test_deadlines_come_in_their_order_whatever_the_order_of_the_log_that_was_read() -> None:
    loaded = Transactions(OWNER)
    for name, since_ms in (("c", 300), ("b", 200), ("a", 100)):
        before = begun(name)
        open_since(before, name, 7, since_ms)
        loaded.replay(before.by_id[name], since_ms)
    loaded.end_load()
    assert loaded.next_deadline_ms() == 1100
    decision = loaded.pass_time(1200)
    assert [record.transactional_id for record in decision.records] == ["a", "b"]
    assert loaded.next_deadline_ms() == 1300


def test_a_deadline_that_was_met_is_of_no_interest() -> None:
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    transactions.end(TICKET, end(), 10)
    assert transactions.pass_time(2000) == ((), ())
    assert transactions.next_deadline_ms() is None


def test_two_transactions_of_the_same_millisecond_are_aborted_once() -> None:
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    transactions.end(TICKET, end(), 0)
    transactions.complete(TICKET, transactions.by_id["a"], 0)
    again = transactions.by_id["a"].producer
    transactions.add(TICKET, "a", again, [TP], 2, 0)
    assert len(transactions.pass_time(1000).records) == 1


def test_adding_more_does_not_move_the_deadline_and_adding_again_writes_nothing() -> None:
    transactions = begun()
    open_since(transactions, "a", 7, 0)
    decision = transactions.add(TICKET, "a", PRODUCER, [TP, TopicPartition("t", 1)], 2, 900)
    assert len(decision.records) == 1
    assert transactions.add(TICKET, "a", PRODUCER, [TP], 2, 950).records == ()
    assert transactions.next_deadline_ms() == 1000


def test_every_transactional_id_is_listed_and_each_is_described() -> None:
    transactions = begun("a", "b")
    ((ticket, listed),) = transactions.list(TICKET).responses
    assert ticket is TICKET
    assert listed == list(transactions.by_id.values())
    assert [one.transactional_id for one in listed] == ["a", "b"]
    assert transactions.describe(TICKET, "b").responses == ((TICKET, listed[1]),)
    assert transactions.describe(TICKET, "c").responses == ((TICKET, None),)


def test_a_transaction_times_out_though_the_clock_was_set_back_before_its_log_was_read() -> None:
    before = begun()
    open_since(before, "a", 7, 5_000_000)
    loaded = Transactions(OWNER)
    loaded.replay(before.by_id["a"], 100)
    loaded.end_load()
    assert loaded.next_deadline_ms() == 1100
    assert loaded.pass_time(1099).records == ()
    (aborted,) = loaded.pass_time(1100).records
    assert isinstance(aborted, Transaction)
    assert aborted.state is State.PREPARE_ABORT


def out_of_epochs() -> tuple[Transactions, Init]:
    """A producer that was fenced by its own init with the last epoch, and that init."""
    transactions = begun()
    last = PRODUCER._replace(epoch=ProducerEpoch(EPOCH_MAX - 1))
    transactions.replay(replace(transactions.by_id["a"], producer=last), 0)
    transactions.add(TICKET, "a", last, [TP], 2, 0)
    again = Init(transactional_id="a", timeout_ms=1000, expected=last)
    transactions.init(TICKET, again, 5)
    transactions.complete(TICKET, transactions.by_id["a"], 6)
    assert transactions.by_id["a"].producer.epoch == EPOCH_MAX
    return transactions, again


def test_nobody_writes_in_the_epoch_that_is_kept_to_fence_the_last_producer() -> None:
    """Whoever claims it was given it by nobody, and there is no epoch left to end it with."""
    transactions, _ = out_of_epochs()
    nobody = transactions.by_id["a"].producer
    fenced = ErrorCode.PRODUCER_FENCED
    added = transactions.add(TICKET, "a", nobody, [TP], 2, 7)
    assert (added.records, added.responses) == ((), ((TICKET, fenced),))
    assert transactions.verify(TICKET, "a", nobody, [TP]).responses == ((TICKET, [fenced]),)
    for version in (0, 2):
        ended = transactions.end(
            TICKET, replace(end(commit=False), producer=nobody, version=version), 8
        )
        assert (ended.records, ended.responses) == ((), ((TICKET, Identified(fenced)),))


def test_no_producer_goes_on_in_the_epoch_that_is_kept_to_fence_it() -> None:
    transactions, again = out_of_epochs()
    decision = transactions.init(TICKET, again, 7)
    assert decision.responses == ((TICKET, Identified(ErrorCode.PRODUCER_FENCED)),)
    new = Init(transactional_id="a", timeout_ms=1000)
    assert transactions.init(TICKET, new, 8).responses == ((TICKET, NeedsProducerId()),)
