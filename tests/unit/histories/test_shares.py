"""The judge of share groups finds what members must never see."""

from histories.history import Acknowledged, Delivered, History, Outcome, Sent, Shares
from histories.shares import judge_shares
from ottla.model import TopicPartition

TP = TopicPartition("jobs", 0)


def delivered(at_s: float, *, offset: int = 0, count: int = 1, by_leader: bool = True) -> Delivered:
    return Delivered("m", TP, offset, f"p#{offset}", count, at_s, is_by_leader=by_leader)


def answered(at_s: float, kind: str = "accept", *, offset: int = 0) -> Acknowledged:
    return Acknowledged("m", TP, offset, f"p#{offset}", kind, at_s)


def judged(shares: Shares, *, sent: int = 1) -> list[str]:
    history = History(
        sent=[Sent("p", TP, number, Outcome.DONE, number) for number in range(sent)], shares=shares
    )
    return [problem.partition(":")[0] for problem in judge_shares(history)]


def test_a_record_that_is_released_comes_again_and_is_accepted_once() -> None:
    shares = Shares(
        [delivered(1), delivered(3, count=2)], [answered(2, "release"), answered(4, "accept")]
    )
    assert judged(shares) == []


def test_a_rejected_record_has_one_dead_letter() -> None:
    assert judged(Shares([delivered(1)], [answered(2, "reject")], dead=["p#0"])) == []
    assert judged(Shares([delivered(1)], [answered(2, "reject")])) == ["no dead letter"]
    doubled = Shares([delivered(1)], [answered(2, "reject")], dead=["p#0", "p#0"])
    assert judged(doubled) == ["2 dead letters"]
    accepted = Shares([delivered(1)], [answered(2)], dead=["p#0"])
    assert judged(accepted) == ["accepted, and dead"]


def test_a_delivery_after_the_end_is_found_unless_a_replaced_leader_made_it() -> None:
    again = [delivered(1), delivered(3, count=2)]
    assert judged(Shares(again, [answered(2)])) == ["delivered after its end"]
    by_replaced = [delivered(1), delivered(3, count=2, by_leader=False)]
    assert judged(Shares(by_replaced, [answered(2)])) == []
    assert judged(Shares(by_replaced, [answered(2), answered(4)])) == ["finished twice"]


def test_what_is_lost_unfinished_or_delivered_too_often_is_found() -> None:
    assert judged(Shares([delivered(1)], [answered(2)]), sent=2) == ["never delivered"]
    assert judged(Shares([delivered(1)], unfinished="lags")) == ["unfinished"]
    assert judged(Shares([delivered(1, count=6)])) == ["delivered too often"]
