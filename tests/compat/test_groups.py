"""Consumer groups of real clients: who reads what, and from where after a change."""

import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Unpack

import pytest

from compat import kcat_client
from compat.adapter import Sent, wait_until
from compat.confluent_client import ConfluentClient
from compat.group_member import Member, MemberOptions, Partition
from compat.raw import connected
from compat.served import ServedBroker
from compat.wire import create_topic

CLIENTS: Final = ["confluent", "kafka-python", "aiokafka", "kcat"]
LIBRARIES: Final = CLIENTS[:3]
SETTINGS: Final = {
    # Not 0: a kafka-python leader that joins before its first metadata assigns nothing.
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
ENDINGS: Final = [signal.SIGTERM, signal.SIGKILL]

_numbers = count(1)

StartMember = Callable[..., Member]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(tmp_path_factory.mktemp("groups") / "data", SETTINGS)
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


@pytest.fixture
def members() -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        member.kill()


@pytest.fixture
def start(broker: ServedBroker, members: list[Member]) -> StartMember:
    return starter(broker, members)


def starter(broker: ServedBroker, members: list[Member]) -> StartMember:
    def start(client: str, group: str, *topics: str, **more: Unpack[MemberOptions]) -> Member:
        if client == "kcat" and not kcat_client.is_installed():
            pytest.skip(kcat_client.MISSING)
        member = Member(client, broker.address, group, *topics, **more)
        members.append(member)
        return member

    return start


def new_topic(broker: ServedBroker, partitions: int = 4) -> str:
    name = f"orders-{next(_numbers)}"
    with connected(broker.address) as raw:
        create_topic(raw, name, partitions)
    return name


def produce(broker: ServedBroker, topic: str, values: range, partitions: int = 4) -> list[str]:
    records = [Sent(value=str(value).encode(), partition=value % partitions) for value in values]
    ConfluentClient(broker.address).produce(topic, *records)
    return [str(value) for value in values]


def all_of(topic: str, partitions: int = 4) -> frozenset[Partition]:
    return frozenset((topic, index) for index in range(partitions))


def wait_shared(topic: str, *members: Member, partitions: int = 4) -> None:
    """Wait until every partition has one owner, and every member that can have one does."""

    def is_shared() -> bool:
        owned = [member.owned for member in members]
        busy = sum(1 for one in owned if one)
        return (
            sum(map(len, owned)) == partitions
            and frozenset().union(*owned) == all_of(topic, partitions)
            and busy == min(len(members), partitions)
        )

    _wait(is_shared, f"{topic} is shared", members)


def wait_values(expected: list[str], *members: Member) -> None:
    wanted = set(expected)

    def have_come() -> bool:
        return wanted <= {value for member in members for value in member.values}

    _wait(have_come, "all records are read", members)


def _wait(is_true: Callable[[], bool], what: str, members: Sequence[Member]) -> None:
    try:
        wait_until(is_true, what)
    except AssertionError as late:
        raise AssertionError(f"{late}: {members}") from None


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_reads_everything_and_goes_on_where_it_stopped(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker)
    first = produce(broker, topic, range(40))
    reader = start(client, f"g-{topic}", topic)
    wait_values(first, reader)
    assert sorted(reader.values, key=int) == first
    reader.leave()
    second = produce(broker, topic, range(40, 60))
    again = start(client, f"g-{topic}", topic)
    wait_values(second, again)
    assert sorted(again.values, key=int) == second


@pytest.mark.parametrize("client", CLIENTS)
def test_partitions_are_shared_anew_when_members_come_and_go(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker)
    one = start(client, f"g-{topic}", topic)
    wait_shared(topic, one)
    # One record of each partition first: librdkafka 2.0.2 that loses a partition while it still
    # asks where to begin may begin anew there when it gets the partition back.
    values = produce(broker, topic, range(4))
    wait_values(values, one)
    two = start(client, f"g-{topic}", topic)
    wait_shared(topic, one, two)
    values += produce(broker, topic, range(4, 20))
    wait_values(values, one, two)
    two.leave()
    wait_shared(topic, one)
    values += produce(broker, topic, range(20, 40))
    wait_values(values, one, two)
    assert sorted(one.values + two.values, key=int) == values


@pytest.mark.parametrize("client", CLIENTS)
def test_a_killed_member_is_replaced_when_its_session_ends(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker)
    one = start(client, f"g-{topic}", topic, session_ms=2000)
    two = start(client, f"g-{topic}", topic, session_ms=2000)
    wait_shared(topic, one, two)
    values = produce(broker, topic, range(20))
    wait_values(values, one, two)
    two.kill()
    values += produce(broker, topic, range(20, 40))
    wait_shared(topic, one)
    wait_values(values, one, two)


def test_cooperative_members_keep_what_they_have_while_others_come(
    broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker)
    one = start("confluent", f"g-{topic}", topic, strategy="cooperative-sticky")
    wait_shared(topic, one)
    before = len(one.changes)
    two = start("confluent", f"g-{topic}", topic, strategy="cooperative-sticky")
    wait_shared(topic, one, two)
    assert all(one.owned <= owned for owned in one.changes[before:]), one.changes
    values = produce(broker, topic, range(20))
    wait_values(values, one, two)
    two.leave()
    wait_shared(topic, one)
    assert sorted(one.values + two.values, key=int) == values


def test_clients_of_different_makers_share_a_group(
    broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker, 6)
    everyone = [start(client, f"g-{topic}", topic) for client in LIBRARIES]
    wait_shared(topic, *everyone, partitions=6)
    values = produce(broker, topic, range(30), 6)
    wait_values(values, *everyone)


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_with_more_members_than_partitions_some_wait_for_their_turn(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker, 2)
    everyone = [start(client, f"g-{topic}", topic) for _ in range(3)]
    wait_shared(topic, *everyone, partitions=2)
    busy = next(member for member in everyone if member.owned)
    busy.leave()
    left = [member for member in everyone if member is not busy]
    wait_shared(topic, *left, partitions=2)


@pytest.mark.parametrize("client", LIBRARIES)
def test_a_pattern_finds_topics_that_come_later(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    prefix = f"many-{next(_numbers)}"
    with connected(broker.address) as raw:
        create_topic(raw, f"{prefix}.a", 1)
    reader = start(client, f"g-{prefix}", pattern=f"{prefix}.*")
    wait_until(lambda: reader.owned == {(f"{prefix}.a", 0)}, "the first topic is read")
    with connected(broker.address) as raw:
        create_topic(raw, f"{prefix}.b", 2)
    wanted = {(f"{prefix}.a", 0), (f"{prefix}.b", 0), (f"{prefix}.b", 1)}
    wait_until(lambda: reader.owned == wanted, "the second topic is read too")


@pytest.mark.parametrize("client", LIBRARIES)
def test_a_static_member_that_is_back_in_time_disturbs_nobody(
    client: str, broker: ServedBroker, start: StartMember
) -> None:
    topic = new_topic(broker)
    one = start(client, f"g-{topic}", topic, instance="one", session_ms=20_000)
    two = start(client, f"g-{topic}", topic, instance="two", session_ms=20_000)
    wait_shared(topic, one, two)
    values = produce(broker, topic, range(20))
    wait_values(values, one, two)
    changes = len(one.changes)
    owned = two.owned
    two.kill()
    again = start(client, f"g-{topic}", topic, instance="two", session_ms=20_000)
    wait_until(lambda: again.owned == owned, "the same partitions are its own again")
    values += produce(broker, topic, range(20, 40))
    wait_values(values, one, two, again)
    assert len(one.changes) == changes, one.changes


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
@pytest.mark.parametrize("client", LIBRARIES)
def test_committed_offsets_survive_the_broker(
    client: str, ending: signal.Signals, mortal: ServedBroker, members: list[Member]
) -> None:
    start = starter(mortal, members)
    topic = new_topic(mortal)
    first = produce(mortal, topic, range(40))
    before = start(client, "g", topic)
    wait_values(first, before)
    before.leave()
    mortal.end(ending)
    mortal.start()
    second = produce(mortal, topic, range(40, 60))
    after = start(client, "g", topic)
    wait_values(second, after)
    assert sorted(after.values, key=int) == second


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_members_stay_members_while_the_broker_restarts(
    ending: signal.Signals, mortal: ServedBroker, members: list[Member]
) -> None:
    start = starter(mortal, members)
    topic = new_topic(mortal)
    one = start("confluent", "g", topic, session_ms=20_000)
    two = start("confluent", "g", topic, session_ms=20_000)
    wait_shared(topic, one, two)
    values = produce(mortal, topic, range(20))
    wait_values(values, one, two)
    mortal.end(ending)
    mortal.start()
    values += produce(mortal, topic, range(20, 40))
    wait_values(values, one, two)
    assert sorted(one.values + two.values, key=int) == values, "each record was read once"
