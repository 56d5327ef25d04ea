"""The list of background work: every chore can run on an idle broker."""

import inspect
from pathlib import Path

from fakes.handled import Handled, handle


def test_every_chore_runs_and_has_a_name_and_an_interval_of_its_own(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        chores = handled.broker._chores()
        assert len({chore.name for chore in chores}) == len(chores) >= 13
        for chore in chores:
            assert chore.interval_s() > 0, chore.name
            done = chore.work()
            if inspect.isawaitable(done):
                await done

    handle(tmp_path, scenario)


def test_intervals_follow_the_settings(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        intervals = {chore.name: chore.interval_s() for chore in handled.broker._chores()}
        assert intervals["retention"] == 7.0
        assert intervals["offsets"] == 9.0

    handle(
        tmp_path,
        scenario,
        log_retention_check_interval_ms="7000",
        offsets_retention_check_interval_ms="9000",
    )
