"""Changes of the cluster for clients: few commits, results in order, refusals by themselves."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import cast

import pytest

from fakes.cluster_images import put_topic
from ottla.broker.metadata_changes import CHANGES_PER_COMMIT, Decide, MetadataChanges
from ottla.cluster.commits import fits
from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.state import ClusterState
from ottla.cluster.store import SMALLEST_LIMITS, Revision, StoreUnavailable
from ottla.cluster.values import Change, PartitionImage, StoredTopic
from ottla.errors import ApiError, TopicAlreadyExists
from ottla.model import BrokerId, LeaderEpoch, Uuid
from ottla.replication.replicas import Replicas

Result = tuple[str | ApiError, ...]
ONE = BrokerId(1)


class FakeState:
    """Commits decisions to an image; `failures` are the commits that the store refuses."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.sizes: list[int] = []  # topics of each commit
        self.failures: set[int] = set()

    def fits(self, image: ClusterImage, changes: Sequence[Change]) -> bool:
        return fits(image, changes, SMALLEST_LIMITS)

    async def commit(self, decide: Callable[[ClusterImage], Decision[Result]]) -> Result:
        decision = decide(self.image)
        await asyncio.sleep(0)
        if len(self.sizes) in self.failures:
            self.sizes.append(0)
            raise StoreUnavailable("the store is away")
        self.sizes.append(sum(isinstance(one.value, StoredTopic) for one in decision.changes))
        self.image = self.image.apply(decision.changes, Revision(self.image.revision + 1))
        return decision.result


class FakeReplicas:
    """Notes the revisions that were waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    async def wait_applied(self, revision: Revision) -> None:
        self.waited.append(revision)


class Bench:
    def __init__(self) -> None:
        self.state = FakeState()
        self.replicas = FakeReplicas()
        self.changes = MetadataChanges(
            cast("ClusterState", self.state), cast("Replicas", self.replicas)
        )

    def each(
        self,
        names: Iterable[str],
        *,
        sizes: Iterable[int] | None = None,
        validate_only: bool = False,
    ) -> list[str]:
        """Create topics; their names, or what was refused."""
        decides = (creation(name) for name in names)
        made = self.create(decides, sizes=sizes, validate_only=validate_only)
        return [str(result) for result in asyncio.run(made)]

    async def create(
        self,
        decides: Iterable[Decide[str]],
        *,
        sizes: Iterable[int] | None = None,
        validate_only: bool = False,
    ) -> Sequence[str | ApiError]:
        return await self.changes.each(decides, sizes=sizes, validate_only=validate_only)


def creation(name: str, partition_count: int = 1) -> Decide[str]:
    """Decides to create a topic, unless there is one of its name."""

    def decide(image: ClusterImage) -> Decision[str]:
        if name in image.topics:
            raise TopicAlreadyExists(f"{name} exists")
        partition = PartitionImage(ONE, LeaderEpoch(0), (ONE,), (ONE,), 0)
        topic_id = Uuid(name.encode().rjust(16, b"\0"))
        topic = TopicImage(name, topic_id, (partition,) * partition_count)
        return Decision(tuple(put_topic(topic)), name)

    return decide


@pytest.fixture
def bench() -> Bench:
    return Bench()


def names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def test_few_changes_are_one_commit_and_wait_until_it_is_served_here(bench: Bench) -> None:
    assert bench.each(names(CHANGES_PER_COMMIT)) == names(CHANGES_PER_COMMIT)
    assert bench.state.sizes == [CHANGES_PER_COMMIT]
    assert bench.replicas.waited == [1]


def test_many_changes_are_few_commits_in_order(bench: Bench) -> None:
    count = 2 * CHANGES_PER_COMMIT + 1
    assert bench.each(names(count)) == names(count)
    assert bench.state.sizes == [CHANGES_PER_COMMIT, CHANGES_PER_COMMIT, 1]
    assert bench.replicas.waited == [1, 2, 3]


def test_changes_with_many_elements_are_committed_in_smaller_parts(bench: Bench) -> None:
    """A change that is too large for any commit has one of its own."""
    sizes = [5000, 1000, 1000, 1, 5000, 1999, 1]
    assert bench.each(names(7), sizes=sizes) == names(7)
    assert bench.state.sizes == [1, 2, 1, 1, 2]


def test_changes_that_do_not_fit_into_one_commit_are_several(bench: Bench) -> None:
    sizes = [20, 20, 20, 60, 200, 1, 1]  # of partitions
    decides = [creation(name, size) for name, size in zip(names(7), sizes, strict=True)]
    assert asyncio.run(bench.create(decides)) == names(7)
    assert bench.state.sizes == [3, 1, 1, 2]


def test_no_changes_are_no_commit(bench: Bench) -> None:
    assert bench.each([]) == []
    assert bench.state.sizes == []


def test_a_refused_change_keeps_its_position_and_stops_no_other(bench: Bench) -> None:
    assert bench.each(["a", "b", "a", "c"]) == ["a", "b", "a exists", "c"]
    assert sorted(bench.state.image.topics) == ["a", "b", "c"]


def test_a_commit_that_the_store_refuses_refuses_all_changes_in_it_and_no_other(
    bench: Bench,
) -> None:
    bench.state.failures = {1}
    results = bench.each(names(3 * CHANGES_PER_COMMIT))
    assert results[:CHANGES_PER_COMMIT] == names(CHANGES_PER_COMMIT)
    assert set(results[CHANGES_PER_COMMIT : 2 * CHANGES_PER_COMMIT]) == {"the store is away"}
    assert len(bench.state.image.topics) == 2 * CHANGES_PER_COMMIT
    assert bench.replicas.waited == [1, 2], "only for what was committed"


def test_to_validate_changes_nothing_and_says_what_would_come_of_it(bench: Bench) -> None:
    bench.each(["a"])
    results = bench.each(["a", *names(CHANGES_PER_COMMIT)], validate_only=True)
    assert results == ["a exists", *names(CHANGES_PER_COMMIT)]
    assert list(bench.state.image.topics) == ["a"]
    assert bench.state.sizes == [1]


@pytest.mark.parametrize(("validate_only", "commits_ahead"), [(False, 1), (True, 2)])
def test_changes_are_read_as_far_as_the_next_commit_needs(
    bench: Bench, validate_only: bool, commits_ahead: int
) -> None:
    """Other requests are served in between, and a large request is never all in memory."""
    read: list[str] = []
    seen: list[int] = []  # how many had been read, whenever others were served

    def decides() -> Iterator[Decide[str]]:
        for name in names(5 * CHANGES_PER_COMMIT):
            read.append(name)
            yield creation(name)

    async def scenario() -> None:
        work = asyncio.create_task(bench.create(decides(), validate_only=validate_only))
        while not work.done():
            seen.append(len(read))
            await asyncio.sleep(0)

    asyncio.run(scenario())
    first = next(count for count in seen if count)
    assert first == commits_ahead * CHANGES_PER_COMMIT + 1
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps[1:]) <= CHANGES_PER_COMMIT + 1, seen
