"""Several requests in one decision."""

from collections.abc import Callable, Sequence
from functools import partial

from fakes.cluster_images import CONFIG, after, cluster, numbered_ids
from ottla.cluster.controller.decision import Decision, decide_each
from ottla.cluster.controller.topics import (
    NewTopic,
    create_topic,
)
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import Change
from ottla.errors import (
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
)


def test_many_requests_are_one_decision_in_which_each_sees_the_ones_before() -> None:
    image = cluster(1)
    new_id = numbered_ids()

    def creation(name: str) -> Callable[[ClusterImage], Decision[TopicImage]]:
        return lambda image: create_topic(
            image, NewTopic(name=name), CONFIG, topic_id=new_id(), start=0
        )

    wishes = [creation(name) for name in ("a", "b", "a", "../c")]
    decision = decide_each(image, wishes)
    assert [type(result) for result in decision.result] == [
        TopicImage,
        TopicImage,
        TopicAlreadyExists,
        InvalidTopic,
    ]
    assert len({change.key for change in decision.changes}) == len(decision.changes)
    assert list(after(image, decision).topics) == ["a", "b"]


def test_requests_are_decided_as_long_as_their_changes_fit() -> None:
    image = cluster(1)
    new_id = numbered_ids()
    wishes = [
        partial(
            create_topic, wanted=NewTopic(name=name), defaults=CONFIG, topic_id=new_id(), start=0
        )
        for name in ("a", "../c", "b", "d")
    ]
    for room, names in ((1, ["a"]), (5, ["a", "b"]), (7, ["a", "b", "d"])):

        def fits(changes: Sequence[Change], room: int = room) -> bool:
            return len(changes) <= room

        decision = decide_each(image, wishes, fits=fits)
        made = [one.name for one in decision.result if isinstance(one, TopicImage)]
        assert made == names, "the first is decided in any case"


def test_a_request_that_fits_into_no_commit_is_refused_and_stops_no_other() -> None:
    image = cluster(1)
    new_id = numbered_ids()
    wishes = [
        partial(
            create_topic, wanted=NewTopic(name=name), defaults=CONFIG, topic_id=new_id(), start=0
        )
        for name in ("large", "a", "larger", "b")
    ]

    def fits(changes: Sequence[Change]) -> bool:
        if any("large" in change.key for change in changes):
            raise PolicyViolation("too large")
        return True

    decision = decide_each(image, wishes, fits=fits)
    assert [type(result) for result in decision.result] == [
        PolicyViolation,
        TopicImage,
        PolicyViolation,
        TopicImage,
    ]
    assert sorted(after(image, decision).topics) == ["a", "b"]
