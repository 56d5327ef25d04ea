"""Due times that a simulation knows without cronsim are those that schedules find with it."""

from random import Random

import pytest

from ottla.queues.schedules import Schedule
from sim.fast_cron import draw_recurrence, speed_up
from sim.loop import EPOCH_MS

_SECONDS = 40


def test_a_minute_of_cron_lasts_a_second_over_a_change_of_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Schedule, "next_ms", Schedule.next_ms)  # put back in the end
    speed_up()
    rng = Random(3)
    for _ in range(30):
        drawn = draw_recurrence(rng)
        zone = None if drawn.zone is None else drawn.zone.encode()
        schedule = Schedule.read(drawn.cron.encode(), zone)
        begin_ms = at_ms = EPOCH_MS + rng.randrange(5000)
        wanted = drawn.due_ms(begin_ms, begin_ms + _SECONDS * 1000)
        assert len(wanted) >= _SECONDS // drawn.every - 1
        found = []
        for _ in wanted:
            at_ms = schedule.next_ms(at_ms)
            found.append(at_ms)
        assert tuple(found) == wanted, drawn
