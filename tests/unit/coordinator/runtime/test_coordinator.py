"""A coordinator of any kind: who coordinates a key, and shards that follow leadership."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

import pytest

from fakes.virtual_loop import VirtualLoop
from fakes.word_coordinator import (
    HERE,
    THERE,
    TOPIC,
    FakeCluster,
    WordBench,
    WordCoordinator,
    Words,
    say,
)
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import Revision
from ottla.coordinator.runtime.coordinator import shard_index
from ottla.coordinator.runtime.decision import Decision, Ticket
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    PolicyViolation,
)
from ottla.model import BrokerId, TopicPartition
from ottla.replication.replicas import Replicas


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_main(scenario))


async def _main(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


# Finding the coordinator


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", 0),
        ("test", 3556498),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("Größe", 69209585),
        ("\U0001f600", 1772899),
    ],
)
def test_a_key_belongs_to_the_partition_that_kafka_gives_it(key: str, code: int) -> None:
    """Java's hash of a string, without its sign."""
    for count in (1, 50, 2**31 - 1):
        assert shard_index(key, count) == (code & 0x7FFFFFFF) % count


def test_the_first_request_creates_the_topic_once_for_all_that_wait() -> None:
    async def scenario() -> None:
        bench = WordBench(2)
        bench.cluster.creation_s = 1.0
        found = await asyncio.gather(*(bench.coordinator.find(key) for key in ("a", "b", "c")))
        assert [broker.id for broker in found] == [HERE] * 3
        assert bench.cluster.creations == 1
        await bench.coordinator.find("d")
        assert bench.cluster.creations == 1
        await settle()
        assert len(bench.coordinator.machines()) == 2, "shards are made at once"

    run(scenario)


def test_no_request_waits_long_for_the_topic() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.creation_s = 30.0
        with pytest.raises(CoordinatorNotAvailable, match="__words is being created"):
            await bench.coordinator.find("a")
        assert bench.loop.now_s < 5
        bench.cluster.creation_s = 0.0
        await asyncio.sleep(40)
        assert (await bench.coordinator.find("a")).id == HERE
        assert bench.cluster.creations == 1, "the creation went on"

    run(scenario)


def test_a_topic_that_cannot_be_created_says_why_and_is_tried_again() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.refusals = {TOPIC: PolicyViolation("too many partitions")}
        with pytest.raises(CoordinatorNotAvailable, match="too many partitions"):
            await bench.coordinator.find("a")
        bench.cluster.refusals = {}
        assert (await bench.coordinator.find("a")).id == HERE

    run(scenario)


def test_a_partition_without_a_leader_that_can_serve_has_no_coordinator() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.put([None])
        with pytest.raises(CoordinatorNotAvailable, match="__words-0 currently has no leader"):
            await bench.coordinator.find("a")
        bench.cluster.put([HERE])
        with pytest.raises(CoordinatorNotAvailable, match="__words-0 currently has no leader"):
            await bench.coordinator.find("a")  # its log is not made yet
        bench.cluster.put([BrokerId(9)])
        with pytest.raises(CoordinatorNotAvailable, match="leader of __words-0 is not registered"):
            await bench.coordinator.find("a")
        bench.cluster.put([THERE])
        assert (await bench.coordinator.find("a")).id == THERE

    run(scenario)


def test_each_key_has_the_leader_of_its_partition() -> None:
    async def scenario() -> None:
        bench = WordBench(2)
        bench.cluster.lead([1])
        keys = {shard_index(key, 2): key for key in ("a", "b")}
        assert (await bench.coordinator.find(keys[1])).id == HERE
        assert (await bench.coordinator.find(keys[0])).id == THERE
        assert bench.coordinator.partition_of(keys[0]) == TopicPartition(TOPIC, 0)

    run(scenario)


# Requests


def test_a_request_before_the_topic_exists_has_to_find_its_coordinator() -> None:
    async def scenario() -> None:
        bench = WordBench()
        with pytest.raises(NotCoordinator, match="find the coordinator first"):
            await bench.say("a")

    run(scenario)


def test_a_request_goes_to_the_shard_of_its_key() -> None:
    async def scenario() -> None:
        bench = WordBench(2)
        bench.cluster.lead([0, 1])
        bench.coordinator.follow()
        await settle()
        keys = {shard_index(key, 2): key for key in ("a", "b")}
        assert await bench.say(keys[1], "second") == "said second"
        assert await bench.say(keys[0], "first") == "said first"
        assert bench.words() == [["first"], ["second"]]

    run(scenario)


def test_a_request_for_a_partition_that_is_led_elsewhere_is_refused() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([])
        with pytest.raises(NotCoordinator, match="this broker does not lead __words-0"):
            await bench.say("a")

    run(scenario)


def test_a_request_that_knows_more_than_this_broker_makes_it_look_again() -> None:
    """The client has seen the new leader before the coordinator has."""

    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        with pytest.raises(CoordinatorLoadInProgress):
            await bench.say("a")
        await settle()
        old = bench.coordinator.shard(0)
        bench.cluster.lead([])
        bench.cluster.lead([0])  # led again, in another epoch
        with pytest.raises(CoordinatorLoadInProgress):
            await bench.say("a")
        assert old.is_dropped

    run(scenario)


def test_a_ticket_gets_the_response_of_its_shard() -> None:
    class NotedTicket(Ticket[str]):
        def deliver(self, value: str) -> None:
            delivered.append(value)

        def fail(self, error: ApiError) -> None:
            raise AssertionError(error)

    delivered: list[str] = []

    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        bench.coordinator.follow()
        await settle()
        bench.coordinator.submit("a", NotedTicket(), say("hello"))
        await settle()
        assert delivered == ["said hello"]

    run(scenario)


def test_of_all_shards_here_one_that_is_lost_gives_no_response() -> None:
    async def scenario() -> None:
        bench = WordBench(3)
        bench.cluster.lead([0, 1, 2])
        bench.coordinator.follow()
        await settle()
        others = [bench.coordinator.shard(1)]

        def lose_one(machine: Words, ticket: Ticket[str], now_ms: int) -> Decision[str]:
            while others:
                others.pop().drop()
            return say("all")(machine, ticket, now_ms)

        assert await bench.coordinator.run_everywhere(lose_one) == ["said all"] * 2

    run(scenario)


# Leadership


def test_a_shard_reads_what_its_log_has() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        bench.coordinator.follow()
        await settle()
        await bench.say("a", "one")
        bench.coordinator.shard(0).drop()
        await settle()
        assert bench.words() == [["one"]], "another shard has read the log"

    run(scenario)


def test_a_deadline_whose_record_cannot_be_written_is_tried_again_each_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As when a transaction has timed out and too few replicas are in sync."""

    class Overdue(Words):
        def next_deadline_ms(self) -> int | None:
            return 0

        def pass_time(self, now_ms: int) -> Decision[str]:
            return Decision(("late",))

    class OverdueCoordinator(WordCoordinator):
        def new_machine(self, index: int) -> Words:
            return Overdue()

    async def scenario() -> None:
        bench = WordBench(coordinator_class=OverdueCoordinator)
        bench.cluster.lead([0])
        bench.cluster.leaders[TOPIC, 0].log.take_offline("the disk has failed")
        bench.coordinator.follow()
        await asyncio.sleep(10.5)
        drops = [one for one in caplog.records if one.getMessage().startswith("shard dropped")]
        assert 5 < len(drops) <= 11, "at once, and each second at most"
        with pytest.raises(CoordinatorLoadInProgress):
            await bench.say("a")
        bench.coordinator.close()

    run(scenario)


def test_shards_follow_the_partitions_that_are_led_here() -> None:
    async def scenario() -> None:
        bench = WordBench(3)
        bench.cluster.lead([0, 1])
        bench.coordinator.follow()
        await settle()
        kept, lost = bench.coordinator.shard(1), bench.coordinator.shard(0)
        assert bench.coordinator.loaded == [0, 1]
        bench.cluster.lead([1, 2])
        bench.coordinator.follow()
        await settle()
        assert bench.coordinator.loaded == [0, 1, 2]
        assert lost.is_dropped
        assert bench.coordinator.shard(1) is kept
        assert len(bench.coordinator.machines()) == 2

    run(scenario)


def test_an_image_is_followed_once_the_replicas_have_applied_it() -> None:
    async def scenario() -> None:
        bench = WordBench()
        before = bench.cluster.image
        bench.cluster.applied.clear()
        bench.cluster.lead([0])
        bench.coordinator.note_image(before, bench.cluster.image)
        await settle()
        assert bench.coordinator.machines() == []
        bench.cluster.applied.set()
        await settle()
        assert len(bench.coordinator.machines()) == 1

    run(scenario)


def test_an_image_in_which_the_topic_is_the_same_is_not_waited_for() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        image = bench.cluster.image
        bench.coordinator.note_image(image, replace(image, revision=Revision(99)))
        await settle()
        assert bench.coordinator.machines() == []

    run(scenario)


def test_a_log_that_cannot_be_read_is_tried_again_a_little_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        bench.coordinator.follow()
        await settle()
        await bench.say("a", "one")
        partition = bench.cluster.leaders[TOPIC, 0]
        bench.coordinator.shard(0).drop()  # the next shard is made in the next turn,
        bench.loop.call_soon(bench.cluster.leaders.clear)  # and cannot read the log
        await settle()
        assert [record.getMessage() for record in caplog.records] == ["shard load failed"]
        bench.cluster.leaders[TOPIC, 0] = partition
        with pytest.raises(CoordinatorLoadInProgress):
            await bench.say("a")
        await asyncio.sleep(0.9)
        assert bench.words() == []
        await asyncio.sleep(0.2)
        assert bench.words() == [["one"]]

    run(scenario)


# Time, mistakes, the end


def test_time_does_not_jump_with_the_machines_clock() -> None:
    class SetClock:
        def __init__(self) -> None:
            self.of_day_ms = 5_000_000
            self.since_boot_s = 100.0

        def now_ms(self) -> int:
            return self.of_day_ms

        def monotonic_s(self) -> float:
            return self.since_boot_s

    async def scenario() -> None:
        clock, cluster = SetClock(), FakeCluster(1)
        coordinator = WordCoordinator(
            cast("ClusterState", cluster),
            cast("Replicas", cluster),
            cluster,
            clock,  # type: ignore[arg-type]
            lambda defect: None,
        )
        assert coordinator.now_ms() == 5_000_000
        clock.of_day_ms = 0
        clock.since_boot_s += 1.5
        assert coordinator.now_ms() == 5_001_500

    run(scenario)


def test_a_task_that_fails_is_a_defect_and_one_that_is_cancelled_is_not() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("our mistake")

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    ended: list[str] = []

    async def scenario() -> None:
        bench = WordBench()
        bench.coordinator.spawn(fail())
        bench.coordinator.spawn(wait())
        await settle()
        assert ended == []
        bench.coordinator.close()
        await settle()
        assert ended == ["cancelled"]
        assert [type(defect) for defect in bench.defects] == [ZeroDivisionError]

    run(scenario)


def test_a_coordinator_that_stops_drops_its_shards_and_makes_no_new_ones() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.lead([0])
        bench.coordinator.follow()
        await settle()
        shard = bench.coordinator.shard(0)
        bench.coordinator.close()
        await settle()
        assert shard.is_dropped
        bench.coordinator.follow()
        bench.coordinator.note_image(ClusterImage(), bench.cluster.image)
        await settle()
        assert bench.coordinator.machines() == []
        with pytest.raises(CoordinatorNotAvailable, match="this broker is stopping"):
            await bench.coordinator.find("a")

    run(scenario)


def test_a_topic_that_is_being_created_is_not_waited_for_at_the_end() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.creation_s = 3600.0
        with pytest.raises(CoordinatorNotAvailable):
            await bench.coordinator.find("a")
        bench.coordinator.close()
        await asyncio.sleep(7200)
        assert TOPIC not in bench.cluster.image.topics

    run(scenario)


def test_a_request_that_waits_for_the_topic_is_refused_when_the_broker_stops() -> None:
    async def scenario() -> None:
        bench = WordBench()
        bench.cluster.creation_s = 3600.0
        finding = asyncio.ensure_future(bench.coordinator.find("a"))
        await settle()
        bench.coordinator.close()
        with pytest.raises(CoordinatorNotAvailable, match="this broker is stopping"):
            await finding
        assert bench.loop.now_s < 1

    run(scenario)
