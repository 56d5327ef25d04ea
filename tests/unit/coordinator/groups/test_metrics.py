"""What Prometheus is told about groups, and how much of it at most."""

from dataclasses import dataclass, field
from typing import cast

from fakes import group_members
from fakes.tickets import FakeTicket
from ottla.coordinator.groups.classic_protocol import GroupLimits
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.metrics import collect_groups
from ottla.coordinator.groups.offsets import Commit
from ottla.model import NO_EPOCH, Offset, TopicPartition
from ottla.replication.replicas import Replicas
from ottla.telemetry import exposition

NOBODY = Committer(member_id="", instance_id=None, generation=-1, version=9)


@dataclass
class Led:
    """What a lag is counted against."""

    high_watermark: Offset


@dataclass
class Leading:
    """The partitions that are led here."""

    leaders: dict[TopicPartition, Led] = field(default_factory=dict)


def leading(**high_watermarks: int) -> Replicas:
    """Partitions of one topic for each name, such as orders0=10."""
    leaders = {
        TopicPartition(name[:-1], int(name[-1])): Led(Offset(mark))
        for name, mark in high_watermarks.items()
    }
    return cast("Replicas", Leading(leaders))


def shard() -> Groups:
    return Groups(GroupLimits, lambda: "id")


def commit(groups: Groups, group_id: str, topic: str, partition: int, offset: int) -> None:
    tp = TopicPartition(topic, partition)
    commits = [Commit(tp, Offset(offset), NO_EPOCH, "")]
    groups.commit(FakeTicket(1), group_id, NOBODY, commits, now_ms=0)


def lines(
    shards: list[Groups], replicas: Replicas, *, series_max: int = 100, with_partitions: bool = True
) -> list[str]:
    page = exposition(
        collect_groups(shards, replicas, series_max=series_max, with_partitions=with_partitions)
    )
    return [line for line in page.decode().splitlines() if not line.startswith("#")]


def test_lag_is_what_lies_between_the_commit_and_the_high_watermark() -> None:
    first, second = shard(), shard()
    commit(first, "billing", "orders", 0, 4)
    commit(first, "billing", "orders", 1, 10)
    commit(second, "audit", "orders", 0, 0)
    found = lines([first, second], leading(orders0=10, orders1=12))
    assert found == [
        'ottla_groups{state="Empty"} 2.0',
        'ottla_group_members{group="audit"} 0.0',
        'ottla_group_members{group="billing"} 0.0',
        'ottla_group_state{group="audit",state="Empty"} 1.0',
        'ottla_group_state{group="billing",state="Empty"} 1.0',
        'ottla_group_topic_lag{group="audit",topic="orders"} 10.0',
        'ottla_group_topic_lag{group="billing",topic="orders"} 8.0',
        'ottla_group_lag{group="audit",partition="0",topic="orders"} 10.0',
        'ottla_group_lag{group="billing",partition="0",topic="orders"} 6.0',
        'ottla_group_lag{group="billing",partition="1",topic="orders"} 2.0',
        'ottla_group_committed_offset{group="audit",partition="0",topic="orders"} 0.0',
        'ottla_group_committed_offset{group="billing",partition="0",topic="orders"} 4.0',
        'ottla_group_committed_offset{group="billing",partition="1",topic="orders"} 10.0',
        "ottla_group_series_left_out 0.0",
    ]


def test_members_and_state_are_counted() -> None:
    groups = shard()
    groups.join(FakeTicket(1), "billing", group_members.join(version=3), now_ms=0)
    found = lines([groups], leading())
    assert 'ottla_groups{state="PreparingRebalance"} 1.0' in found
    assert 'ottla_group_members{group="billing"} 1.0' in found
    assert 'ottla_group_state{group="billing",state="PreparingRebalance"} 1.0' in found


def test_what_is_committed_beyond_the_end_does_not_lag_behind_zero() -> None:
    groups = shard()
    commit(groups, "g", "t", 0, 50)
    assert 'ottla_group_lag{group="g",partition="0",topic="t"} 0.0' in lines(
        [groups], leading(t0=7)
    )


def test_partitions_that_others_lead_have_no_lag_here() -> None:
    groups = shard()
    commit(groups, "g", "t", 0, 5)
    found = lines([groups], leading())
    assert not [line for line in found if "lag" in line]
    assert 'ottla_group_committed_offset{group="g",partition="0",topic="t"} 5.0' in found


def test_partitions_can_be_switched_off_and_sums_stay() -> None:
    groups = shard()
    commit(groups, "g", "t", 0, 5)
    found = lines([groups], leading(t0=7), with_partitions=False)
    assert 'ottla_group_topic_lag{group="g",topic="t"} 2.0' in found
    assert not [line for line in found if "partition=" in line]
    assert "ottla_group_series_left_out 0.0" in found


def test_a_full_page_keeps_the_coarse_figures_and_says_how_many_are_missing() -> None:
    groups = shard()
    for n in range(5):
        commit(groups, f"g{n}", "t", 0, 0)
    # 5 of members, 5 of states, 5 of topics, 5 of lags, 5 of offsets
    found = lines([groups], leading(t0=9), series_max=17)
    counted = [line for line in found if 'group="g' in line]
    assert len(counted) == 17
    assert sum("topic_lag" in line for line in counted) == 5
    assert [line.split("{")[1][:10] for line in counted if "group_lag{" in line] == [
        'group="g0"',
        'group="g1"',
    ]
    assert "ottla_group_series_left_out 8.0" in found
    assert 'ottla_groups{state="Empty"} 5.0' in found
    nothing = lines([groups], leading(t0=9), series_max=0)
    assert nothing == ['ottla_groups{state="Empty"} 5.0', "ottla_group_series_left_out 25.0"]


def test_a_name_that_is_meant_to_fill_the_page_is_left_out() -> None:
    groups = shard()
    commit(groups, "x" * 30_000, "t", 0, 0)
    found = lines([groups], leading(t0=9))
    assert found == ['ottla_groups{state="Empty"} 1.0', "ottla_group_series_left_out 5.0"]
