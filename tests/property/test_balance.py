"""A plan evens out replicas and leaders, with no more copies than that takes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fakes.cluster_images import broker as broker_image
from ottla.cluster.balance import balance
from ottla.model import BrokerId, TopicPartition

NO_RACKS = st.none()


@st.composite
def placements(
    draw: st.DrawFn, racks: st.SearchStrategy[str | None] = NO_RACKS
) -> tuple[dict[TopicPartition, tuple[BrokerId, ...]], list[str | None]]:
    """Partitions on some of the brokers, and the rack of each broker."""
    found = draw(st.lists(racks, min_size=1, max_size=6))
    factor = draw(st.integers(1, len(found)))
    brokers = st.permutations([BrokerId(number) for number in range(len(found))])
    count = draw(st.integers(0, 20))
    placed = {TopicPartition("t", index): tuple(draw(brokers)[:factor]) for index in range(count)}
    return placed, found


def applied(
    placed: dict[TopicPartition, tuple[BrokerId, ...]], racks: list[str | None]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    sites = {BrokerId(n): broker_image(n, rack=rack) for n, rack in enumerate(racks)}
    return {**placed, **balance(placed, sites, sites.keys())}


@given(placements())
def test_every_broker_has_and_leads_about_as_many(
    given: tuple[dict[TopicPartition, tuple[BrokerId, ...]], list[str | None]],
) -> None:
    placed, racks = given
    after = applied(placed, racks)
    held = Counter({BrokerId(n): 0 for n in range(len(racks))})
    held.update(one for replicas in after.values() for one in replicas)
    led = Counter({BrokerId(n): 0 for n in range(len(racks))})
    led.update(replicas[0] for replicas in after.values())
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1
    for tp, replicas in after.items():
        assert len(set(replicas)) == len(placed[tp])
    copies = sum(len(set(after[tp]) - set(placed[tp])) for tp in placed)
    before = Counter(one for replicas in placed.values() for one in replicas)
    assert copies == sum((before - held).values()), "only what is too much somewhere is moved"
    assert applied(after, racks) == after, "a balanced cluster stays as it is"


@given(placements(racks=st.sampled_from([None, "a", "b"])))
def test_replicas_stay_in_as_many_racks(
    given: tuple[dict[TopicPartition, tuple[BrokerId, ...]], list[str | None]],
) -> None:
    placed, racks = given
    for tp, replicas in applied(placed, racks).items():
        assert len({racks[one] for one in replicas}) >= len({racks[one] for one in placed[tp]})


def test_brokers_that_are_drained_or_dead_are_left_alone() -> None:
    ids = [BrokerId(number) for number in range(4)]
    placed = {TopicPartition("t", index): (ids[0], ids[1]) for index in range(6)}
    sites = {one: broker_image(one) for one in ids}
    after = {**placed, **balance(placed, sites, ids[:3])}
    assert all(ids[3] not in replicas for replicas in after.values())
    held = Counter(one for replicas in after.values() for one in replicas)
    assert sorted(held.values()) == [4, 4, 4]
