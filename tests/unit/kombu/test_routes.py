"""The queues that a message goes to."""

import pytest

from ottla.kombu.routes import Binding, queues_for
from ottla.kombu.session import topic_of

BINDINGS = [
    Binding("tasks", "direct", "fast", "a"),
    Binding("tasks", "direct", "slow", "b"),
    Binding("news", "topic", "sport.*", "c"),
    Binding("news", "topic", "#", "d"),
    Binding("news", "topic", "sport.#.final", "e"),
    Binding("all", "fanout", "", "f"),
    Binding("all", "fanout", "x", "g"),
]


@pytest.mark.parametrize(
    ("exchange", "routing_key", "queues"),
    [
        ("tasks", "fast", "a"),
        ("tasks", "fas.", ""),
        ("other", "fast", ""),
        ("news", "sport.ball", "cd"),
        ("news", "sport.ball.final", "de"),
        ("news", "sportsmen", "d"),
        ("all", "anything", "fg"),
    ],
)
def test_bindings_decide(exchange: str, routing_key: str, queues: str) -> None:
    assert queues_for(BINDINGS, exchange, routing_key) == set(queues)


def test_without_an_exchange_the_key_is_the_queue() -> None:
    assert queues_for(BINDINGS, "", "anything") == {"anything"}


def test_names_of_queues_become_names_of_topics_and_stay_different() -> None:
    assert topic_of("celery") == "celery"
    names = ["a@b", "a_40_b", "a b", "a.b", "a-b", "a_b", "ä"]
    topics = {topic_of(name) for name in names}
    assert len(topics) == len(names)
    assert all(set(topic) <= set("abcdef0123456789._-") for topic in topics)
