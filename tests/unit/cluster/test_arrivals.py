"""Which brokers count as having just come."""

from fakes.cluster_images import back, cluster, gone
from ottla.cluster.arrivals import Arrivals
from ottla.cluster.image import ClusterImage


def recent(*steps: tuple[ClusterImage, float], now_s: float) -> tuple[int, ...]:
    arrivals, before = Arrivals(), steps[0][0]
    for image, at_s in steps[1:]:
        arrivals.note_image(before, image, at_s)
        before = image
    return arrivals.recent(now_s)


def test_brokers_that_were_there_from_the_first_are_not_new() -> None:
    assert recent((cluster(1, 2), 0.0), now_s=0.0) == ()


def test_a_broker_is_new_for_a_minute() -> None:
    steps = (cluster(1), 0.0), (cluster(1, 2), 10.0)
    assert recent(*steps, now_s=69.9) == (2,)
    assert recent(*steps, now_s=70.0) == ()


def test_a_broker_that_registers_again_is_new_again_and_the_last_of_them() -> None:
    two = back(cluster(1), 2)
    three = back(two, 3)
    again = back(three, 2)
    assert recent((cluster(1), 0.0), (two, 1.0), (three, 2.0), now_s=3.0) == (2, 3)
    steps = (cluster(1), 0.0), (two, 1.0), (three, 2.0), (again, 3.0)
    assert recent(*steps, now_s=61.5) == (3, 2)
    assert recent(*steps, now_s=62.5) == (2,)


def test_a_broker_that_goes_makes_no_other_new() -> None:
    assert recent((cluster(1, 2), 0.0), (gone(cluster(1, 2), 2), 1.0), now_s=1.0) == ()
