"""The judge of records that come again finds what must never become of them."""

from collections.abc import Sequence
from dataclasses import replace

from histories.history import (
    History,
    Outcome,
    Recurring,
    Released,
    Removal,
    Scheduled,
    Waits,
)
from histories.recurrences import SERVED_MS
from histories.waits import judge_waits
from ottla.model import TopicPartition

TP = TopicPartition("reminders", 0)
EVERY_MS = 1000
SENT = Recurring(
    "a", TP, tuple(range(1000, 90_000, EVERY_MS)), 0, Outcome.DONE, ticket=5, acked_ms=10
)


def copies(*times_ms: int, first: int = 10) -> list[Released]:
    """Occurrences that came at these times: the first has the ticket of the schedule."""
    return [
        Released(TP, first + 2 * at, "a", at_ms, 5 if at == 0 else first + 2 * at - 1, 5)
        for at, at_ms in enumerate(times_ms)
    ]


def served(*times_ms: int) -> list[Scheduled]:
    """Records that a partition acknowledged, which came at once."""
    return [Scheduled(f"s{at}", TP, 0, False, Outcome.DONE, 0, at) for at in times_ms]


def judged(
    found: Sequence[Released],
    acked: Sequence[Scheduled] = (),
    *,
    sent: Recurring = SENT,
    removal: Removal | None = None,
    end_ms: int | None = None,
    ended_ms: int | None = None,
) -> list[str]:
    at_once = [Released(TP, 1000 + at, one.value, 0, None) for at, one in enumerate(acked)]
    waits = Waits(
        list(acked),
        released=[*found, *at_once],
        recurring=[sent],
        removals={} if removal is None else {"a": removal},
        end_ms=end_ms,
        ended_ms=ended_ms,
    )
    return [problem.partition(":")[0] for problem in judge_waits(History(waits=waits))]


def test_occurrences_come_each_time() -> None:
    assert judged(copies(1000, 2003, 3000)) == []
    unknown = replace(SENT, outcome=Outcome.UNKNOWN, ticket=None, acked_ms=None)
    assert judged(copies(1000, 2000), sent=unknown) == []
    assert judged([], sent=unknown) == []


def test_one_that_comes_before_the_next_time_is_early() -> None:
    assert judged(copies(999)) == ["occurrence early"]
    assert judged(copies(1000, 1999)) == ["occurrence early"]


def test_what_was_missed_comes_once() -> None:
    assert judged(copies(1000, 5400, 6000)) == []
    assert judged(copies(1000, 5400, 5401)) == ["occurrence early"]


def test_one_ticket_twice_is_found() -> None:
    first, second = copies(1000, 2000)
    assert judged([first, replace(second, ticket=5)]) == ["occurrence delivered twice"]


def test_a_time_that_passes_while_the_partition_is_served_is_lost() -> None:
    steadily = served(*range(1500, 8000, 400))
    assert judged(copies(1000, 2000), steadily, end_ms=8000) == ["occurrence lost"]
    assert judged(copies(1000, 7000), steadily, end_ms=8000) == ["occurrence lost"]
    assert judged([], steadily, end_ms=8000) == ["occurrence lost"]
    unknown = replace(SENT, outcome=Outcome.UNKNOWN, ticket=None, acked_ms=None)
    assert judged([], steadily, sent=unknown, end_ms=8000) == []


def test_a_time_may_pass_while_the_partition_is_not_served() -> None:
    seldom = served(*range(1500, 20_000, 501))
    assert judged(copies(1000, 20_000), seldom) == []
    shortly = served(*range(2000, 2000 + SERVED_MS, 100))
    assert judged(copies(1000, 20_000), shortly) == []


def test_a_cancellation_is_the_end_once_it_is_acknowledged() -> None:
    steadily = served(*range(1500, 8000, 400))
    removal = Removal(2500, Outcome.DONE, 13)
    assert judged(copies(1000, 2000), steadily, removal=removal, end_ms=8000) == []
    assert judged(copies(1000, 2000, 3000), removal=removal) == ["came again, though cancelled"]
    lost = Removal(2500, Outcome.UNKNOWN, None)
    assert judged(copies(1000, 2000), steadily, removal=lost, end_ms=8000) == []
    assert judged(copies(1000, 2000, 3000), removal=lost) == []
    refused = Removal(2500, Outcome.REFUSED, None)
    found = judged(copies(1000, 2000), steadily, removal=refused, end_ms=8000)
    assert found == ["occurrence lost"]


def test_none_comes_after_all_were_cancelled() -> None:
    assert judged(copies(1000, 2000), end_ms=2100, ended_ms=2200) == []
    found = judged(copies(1000, 3000), end_ms=2100, ended_ms=2200)
    assert found == ["came again, though all were cancelled by 2200"]


def test_an_occurrence_names_its_schedule_and_is_in_its_partition() -> None:
    [one] = copies(1000)
    assert judged([replace(one, schedule=None)]) == ["occurrence of something else"]
    assert judged([replace(one, schedule=6)]) == ["occurrence of something else"]
    elsewhere = replace(one, tp=TopicPartition("reminders", 1))
    assert judged([elsewhere]) == ["occurrence of something else"]
    refused = replace(SENT, outcome=Outcome.REFUSED, ticket=None, acked_ms=None)
    assert judged([one], sent=refused) == ["came again, though refused"]
