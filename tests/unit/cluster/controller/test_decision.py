"""Several requests in one decision."""

from collections.abc import Callable

from fakes.cluster_images import CONFIG, after, cluster, numbered_ids
from ottla.cluster.controller.decision import Decision, decide_each
from ottla.cluster.controller.topics import (
    NewTopic,
    create_topic,
)
from ottla.cluster.image import (
    ClusterImage,
    TopicImage,
)
from ottla.errors import (
    InvalidTopic,
    TopicAlreadyExists,
)


def test_many_requests_are_one_decision_in_which_each_sees_the_ones_before() -> None:
    image = cluster(1)
    new_id = numbered_ids()

    def creation(name: str) -> Callable[[ClusterImage], Decision[TopicImage]]:
        return lambda image: create_topic(
            image, NewTopic(name=name), CONFIG, new_id=new_id, start=0
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
