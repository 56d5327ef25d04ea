"""Groups of the newer protocol with librdkafka's consumers, alone and beside the older protocol.

The members are processes of their own: they leave, are killed, restart and outlive the broker.
"""

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from compat.adapter import PATIENCE_S, wait_until
from compat.group_member import Member
from compat.raw import connected
from compat.served import ServedBroker
from compat.test_groups import all_of, new_topic, produce, wait_shared, wait_values
from compat.wire import create_topic, delete_topic

SETTINGS: Final = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
}
HASTY: Final = {
    **SETTINGS,
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
}
ENDINGS: Final = [signal.SIGTERM, signal.SIGKILL]

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(tmp_path_factory.mktemp("consumers") / "data", SETTINGS)
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker that gives members up soon, for tests that kill some."""
    served = ServedBroker(tmp_path_factory.mktemp("hasty") / "data", HASTY)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker of this test's own, to be ended and started again."""
    served = ServedBroker(tmp_path / "data", SETTINGS)
    served.start()
    yield served
    served.stop()


class Members:
    """Starts members, and kills those that a test leaves behind."""

    def __init__(self) -> None:
        self._started: list[Member] = []

    def newer(self, broker: ServedBroker, group: str, *topics: str, **more: Any) -> Member:
        return self._start(broker, group, *topics, protocol="consumer", **more)

    def older(self, broker: ServedBroker, group: str, *topics: str, **more: Any) -> Member:
        return self._start(broker, group, *topics, **more)

    def _start(self, broker: ServedBroker, group: str, *topics: str, **more: Any) -> Member:
        member = Member("confluent", broker.address, group, *topics, **more)
        self._started.append(member)
        return member

    def kill(self) -> None:
        for member in self._started:
            member.kill()


@pytest.fixture
def members() -> Iterator[Members]:
    started = Members()
    yield started
    started.kill()


def admin(broker: ServedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def described(broker: ServedBroker, group: str) -> Any:
    client = admin(broker)  # it must live until the answer comes
    return client.describe_consumer_groups([group])[group].result(PATIENCE_S)


def listed(broker: ServedBroker, **filters: Any) -> dict[str, Any]:
    client = admin(broker)
    found = client.list_consumer_groups(**filters).result(PATIENCE_S)
    assert not found.errors
    return {group.group_id: group for group in found.valid}


def kind(broker: ServedBroker, group: str) -> ConsumerGroupType:
    found: ConsumerGroupType = listed(broker)[group].type
    return found


def test_members_share_what_there_is_as_they_come_and_go(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker)
    values = produce(broker, topic, range(20))
    one = members.newer(broker, f"g-{topic}", topic)
    wait_values(values, one)
    two = members.newer(broker, f"g-{topic}", topic)
    wait_shared(topic, one, two)
    three = members.newer(broker, f"g-{topic}", topic)
    wait_shared(topic, one, two, three)
    values += produce(broker, topic, range(20, 40))
    wait_values(values, one, two, three)
    two.leave()
    wait_shared(topic, one, three)
    values += produce(broker, topic, range(40, 60))
    wait_values(values, one, two, three)
    everything = one.values + two.values + three.values
    assert sorted(everything, key=int) == values, "each record was read once"


def test_a_member_goes_on_where_the_last_one_stopped(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker)
    first = produce(broker, topic, range(20))
    one = members.newer(broker, f"g-{topic}", topic)
    wait_values(first, one)
    one.leave()
    second = produce(broker, topic, range(20, 30))
    two = members.newer(broker, f"g-{topic}", topic)
    wait_values(second, two)
    assert sorted(two.values, key=int) == second


def test_a_member_keeps_what_it_has_while_another_comes(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker)
    one = members.newer(broker, f"g-{topic}", topic)
    wait_shared(topic, one)
    before = len(one.changes)
    two = members.newer(broker, f"g-{topic}", topic)
    wait_shared(topic, one, two)
    assert all(one.owned <= owned for owned in one.changes[before:]), one.changes


def test_a_killed_member_is_replaced_when_its_session_ends(
    hasty: ServedBroker, members: Members
) -> None:
    topic = new_topic(hasty)
    one = members.newer(hasty, f"g-{topic}", topic)
    two = members.newer(hasty, f"g-{topic}", topic)
    wait_shared(topic, one, two)
    values = produce(hasty, topic, range(20))
    wait_values(values, one, two)
    two.kill()
    values += produce(hasty, topic, range(20, 40))
    wait_shared(topic, one)
    wait_values(values, one, two)


def test_a_static_member_that_restarts_disturbs_nobody(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker)
    one = members.newer(broker, f"g-{topic}", topic, instance="one")
    two = members.newer(broker, f"g-{topic}", topic, instance="two")
    wait_shared(topic, one, two)
    values = produce(broker, topic, range(20))
    wait_values(values, one, two)
    changes, owned = len(one.changes), two.owned
    two.leave()
    again = members.newer(broker, f"g-{topic}", topic, instance="two")
    wait_until(lambda: again.owned == owned, "the same partitions are its own again")
    values += produce(broker, topic, range(20, 40))
    wait_values(values, one, two, again)
    assert len(one.changes) == changes, one.changes


def test_a_static_member_that_was_killed_gets_its_place_when_its_session_has_ended(
    hasty: ServedBroker, members: Members
) -> None:
    """Not before: librdkafka gives up when it hears that its place is taken."""
    topic = new_topic(hasty)
    group = f"g-{topic}"
    one = members.newer(hasty, group, topic, instance="one")
    wait_shared(topic, one)
    one.kill()
    wait_until(
        lambda: described(hasty, group).state is ConsumerGroupState.EMPTY, "its session ends"
    )
    again = members.newer(hasty, group, topic, instance="one")
    wait_shared(topic, again)


def test_with_more_members_than_partitions_some_wait_for_their_turn(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker, 2)
    everyone = [members.newer(broker, f"g-{topic}", topic) for _ in range(3)]
    wait_shared(topic, *everyone, partitions=2)
    busy = next(member for member in everyone if member.owned)
    busy.leave()
    left = [member for member in everyone if member is not busy]
    wait_shared(topic, *left, partitions=2)


def test_a_pattern_finds_topics_that_come_and_forgets_those_that_go(
    broker: ServedBroker, members: Members
) -> None:
    prefix = f"many-{next(_numbers)}"
    with connected(broker.address) as raw:
        create_topic(raw, f"{prefix}.a", 1)
        create_topic(raw, f"x{prefix}.a", 1)
    reader = members.newer(broker, f"g-{prefix}", pattern=f"{prefix}\\..*")
    wait_until(lambda: reader.owned == {(f"{prefix}.a", 0)}, "the first topic is read")
    with connected(broker.address) as raw:
        create_topic(raw, f"{prefix}.b", 2)
    wanted = {(f"{prefix}.a", 0), (f"{prefix}.b", 0), (f"{prefix}.b", 1)}
    wait_until(lambda: reader.owned == wanted, "the second topic is read too")
    with connected(broker.address) as raw:
        delete_topic(raw, f"{prefix}.a")
    wanted.remove((f"{prefix}.a", 0))
    wait_until(lambda: reader.owned == wanted, "the first topic is let go of")


def test_partitions_that_are_added_are_read(broker: ServedBroker, members: Members) -> None:
    topic = new_topic(broker, 1)
    one = members.newer(broker, f"g-{topic}", topic)
    wait_shared(topic, one, partitions=1)
    client = admin(broker)
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
    wait_shared(topic, one)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_members_stay_members_while_the_broker_restarts(
    ending: signal.Signals, mortal: ServedBroker, members: Members
) -> None:
    topic = new_topic(mortal)
    one = members.newer(mortal, "g", topic)
    two = members.newer(mortal, "g", topic)
    wait_shared(topic, one, two)
    values = produce(mortal, topic, range(20))
    wait_values(values, one, two)
    before = {member.member_id for member in described(mortal, "g").members}
    changes = len(one.changes), len(two.changes)
    mortal.end(ending)
    mortal.start()
    values += produce(mortal, topic, range(20, 40))
    wait_values(values, one, two)
    assert sorted(one.values + two.values, key=int) == values, "each record was read once"
    assert {member.member_id for member in described(mortal, "g").members} == before
    assert (len(one.changes), len(two.changes)) == changes, "nobody had to let go of anything"


def test_a_group_changes_its_protocol_and_back_while_it_reads(
    hasty: ServedBroker, members: Members
) -> None:
    topic = new_topic(hasty)
    group = f"g-{topic}"
    old_one = members.older(hasty, group, topic)
    old_two = members.older(hasty, group, topic)
    wait_shared(topic, old_one, old_two)
    values = produce(hasty, topic, range(20))
    wait_values(values, old_one, old_two)
    assert kind(hasty, group) is ConsumerGroupType.CLASSIC

    new_one = members.newer(hasty, group, topic)
    wait_shared(topic, old_one, old_two, new_one)
    assert kind(hasty, group) is ConsumerGroupType.CONSUMER
    values += produce(hasty, topic, range(20, 40))
    wait_values(values, old_one, old_two, new_one)

    old_one.leave()
    new_two = members.newer(hasty, group, topic)
    wait_shared(topic, old_two, new_one, new_two)
    old_two.leave()
    wait_shared(topic, new_one, new_two)
    values += produce(hasty, topic, range(40, 60))
    wait_values(values, old_one, old_two, new_one, new_two)

    old_three = members.older(hasty, group, topic)
    wait_shared(topic, new_one, new_two, old_three)
    new_one.leave()
    new_two.kill()
    wait_shared(topic, old_three)
    assert kind(hasty, group) is ConsumerGroupType.CLASSIC
    values += produce(hasty, topic, range(60, 80))
    everyone = (old_one, old_two, old_three, new_one, new_two)
    wait_values(values, *everyone)


def test_cooperative_members_of_the_older_protocol_keep_reading_through_the_change(
    broker: ServedBroker, members: Members
) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    old = members.older(broker, group, topic, strategy="cooperative-sticky")
    wait_shared(topic, old)
    before = len(old.changes)
    new = members.newer(broker, group, topic)
    wait_shared(topic, old, new)
    assert all(old.owned <= owned for owned in old.changes[before:]), old.changes
    new.leave()
    wait_shared(topic, old)


def test_a_mixed_group_survives_the_broker(mortal: ServedBroker, members: Members) -> None:
    topic = new_topic(mortal)
    old = members.older(mortal, "g", topic)
    new = members.newer(mortal, "g", topic)
    wait_shared(topic, old, new)
    values = produce(mortal, topic, range(20))
    wait_values(values, old, new)
    mortal.end(signal.SIGKILL)
    mortal.start()
    values += produce(mortal, topic, range(20, 40))
    wait_values(values, old, new)
    assert kind(mortal, "g") is ConsumerGroupType.CONSUMER


def test_administrators_see_the_group(hasty: ServedBroker, members: Members) -> None:
    topic = new_topic(hasty)
    group = f"g-{topic}"
    one = members.newer(hasty, group, topic, instance="one")
    wait_shared(topic, one)
    found = described(hasty, group)
    assert (found.state, found.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert found.partition_assignor == "uniform"
    (member,) = found.members
    assert member.group_instance_id == "one"
    assigned = {(tp.topic, tp.partition) for tp in member.assignment.topic_partitions}
    assert assigned == all_of(topic)
    assert group in listed(hasty, types={ConsumerGroupType.CONSUMER})
    assert group not in listed(hasty, types={ConsumerGroupType.CLASSIC})
    assert group in listed(hasty, states={ConsumerGroupState.STABLE})
    assert group not in listed(hasty, states={ConsumerGroupState.EMPTY})
    one.kill()
    wait_until(
        lambda: described(hasty, group).state is ConsumerGroupState.EMPTY, "the group is empty"
    )
    client = admin(hasty)
    client.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert group not in listed(hasty)


def test_offsets_are_those_of_the_group_whatever_its_protocol(broker: ServedBroker) -> None:
    topic = new_topic(broker)
    produce(broker, topic, range(8))
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    newer = Consumer({**settings, "group.protocol": "consumer"})
    newer.subscribe([topic])
    wait_until(lambda: newer.poll(0.1) is not None, "a record comes")
    newer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    newer.close()
    older = Consumer(settings)
    (found,) = older.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    older.close()
    assert found.offset == 2
