"""The readers of the news example: chance that falls the same way, and clicks exactly once."""

import json
from contextlib import closing

import confluent_kafka

from examples.news import topics
from examples.news.readers import INTERESTS, Click, Readers, clicks_on

PATIENCE_S = 60


def article(number: int) -> topics.Value:
    every = sorted(set().union(*INTERESTS.values()))
    return {"id": f"article-{number}", "topics": [every[number % len(every)]]}


def produce(address: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in numbers:
        producer.produce(topics.CLEAN, json.dumps(article(number)), f"article-{number}")
    assert producer.flush(PATIENCE_S) == 0


def clicks(address: str) -> list[Click]:
    topics.wait_settled(address)
    return [Click(**value) for _, value in topics.read_all(address, topics.CLICKS)]


def test_readers_like_what_interests_them() -> None:
    by_interest = {True: 0, False: 0}
    for number in range(500):
        for click in clicks_on(article(number)):
            by_interest[bool(INTERESTS[click.reader] & set(article(number)["topics"]))] += 1
    assert by_interest[True] > 2 * by_interest[False] > 0


def test_every_run_sees_the_same_clicks() -> None:
    one = {"id": "90ad3b2d2b6ae3a1", "topics": ["technology", "sport"]}
    assert clicks_on(one) == clicks_on(dict(one))
    assert {click.article for click in clicks_on(one)} <= {"90ad3b2d2b6ae3a1"}


def test_each_article_is_clicked_on_once_over_restarts(ottla_broker: str) -> None:
    topics.create_topics(ottla_broker)
    for numbers in (range(300), range(300, 450)):  # more than fit into one transaction
        produce(ottla_broker, numbers)
        with closing(Readers(ottla_broker)) as readers:
            expected = [click for number in numbers for click in clicks_on(article(number))]
            assert readers.click(PATIENCE_S) == len(expected)
    everything = [click for number in range(450) for click in clicks_on(article(number))]
    assert clicks(ottla_broker) == everything


def test_what_is_no_article_is_passed_over(ottla_broker: str) -> None:
    topics.create_topics(ottla_broker)
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_broker})
    for value in ("hello", "[1]", "{}", None):
        producer.produce(topics.CLEAN, value)
    assert producer.flush(PATIENCE_S) == 0
    produce(ottla_broker, range(1))
    with closing(Readers(ottla_broker)) as readers:
        assert readers.click(PATIENCE_S) == len(clicks_on(article(0)))
