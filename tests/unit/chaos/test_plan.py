"""The faults of a run follow from its seed, and each kind has its share."""

from collections import Counter

import pytest

from chaos.plan import CUTS, KILLS, POWER, WHOLE, Sizes, draw


def test_a_seed_draws_the_same_faults_each_time_and_another_one_others() -> None:
    assert draw(7, WHOLE) == draw(7, WHOLE)
    assert draw(7, WHOLE) != draw(8, WHOLE)


def test_a_whole_run_has_every_kind_of_fault_as_often_as_it_should() -> None:
    drawn = Counter(planned.kind for planned in draw(1, WHOLE))
    assert drawn == {
        **dict.fromkeys(KILLS, 60 // len(KILLS)),
        **dict.fromkeys(CUTS, 40 // len(CUTS)),
        **dict(zip(POWER, (15, 5), strict=True)),
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_has_three_kills_two_cuts_and_a_power_cut(seed: int) -> None:
    kinds = [planned.kind for planned in draw(seed, Sizes())]
    assert [sum(kind in group for kind in kinds) for group in (KILLS, CUTS, POWER)] == [3, 2, 1]
    assert len(set(kinds)) == len(kinds), "none twice"


def test_the_store_is_away_for_as_long_as_the_sizes_say() -> None:
    away = [one.lasts_s for one in draw(1, WHOLE) if one.kind == "store_majority"]
    assert away == [60.0] * 4
