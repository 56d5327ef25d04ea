from dataclasses import replace

from fakes.cluster_images import broker
from ottla.cluster.placement import place
from ottla.cluster.values import BrokerImage


def brokers(racks: dict[int, str | None]) -> list[BrokerImage]:
    return [broker(number, rack=rack) for number, rack in racks.items()]


def test_leaders_go_round_from_the_start_and_followers_stand_beside_them() -> None:
    three = brokers({1: None, 2: None, 3: None})
    assert place(three, range(3), 2, start=1) == ((2, 3), (3, 1), (1, 2))


def test_on_each_round_the_followers_are_others() -> None:
    three = brokers({1: None, 2: None, 3: None})
    assert place(three, range(6), 2, start=0)[::3] == ((1, 2), (1, 3))


def test_partitions_added_later_continue_the_round() -> None:
    three = brokers({1: None, 2: None, 3: None})
    whole = place(three, range(9), 2, start=5)
    assert place(three, range(4, 9), 2, start=5) == whole[4:]


def test_replicas_lie_in_different_racks_while_there_are_any() -> None:
    racks = brokers({1: "a", 2: "a", 3: "b", 4: "b"})
    for replicas in place(racks, range(8), 2, start=3):
        assert len({number <= 2 for number in replicas}) == 2


def test_replicas_lie_on_different_machines_while_there_are_any() -> None:
    machines = {1: "m", 2: "m", 3: "n", 4: "n", 5: None}
    all_five = [replace(broker(number), machine=name) for number, name in machines.items()]
    for replicas in place(all_five, range(10), 3, start=2):
        assert len({machines[number] for number in replicas}) == 3
    for replicas in place(all_five[:2], range(4), 2, start=0):
        assert sorted(replicas) == [1, 2], "there is no other machine"


def test_one_broker_holds_everything() -> None:
    assert place(brokers({7: None}), range(2), 1, start=9) == ((7,), (7,))
