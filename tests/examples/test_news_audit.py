"""The audit of the news example notices what is lost and what is doubled."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

import ottla.testing
from examples.news import topics
from examples.news.__main__ import SHIPPED_FEEDS, parse_run
from examples.news.audit import (
    SAME_STORY_S,
    Check,
    Fingerprinted,
    check_copies,
    check_crawl,
    compare,
    count_repeats,
)
from examples.news.crawl import Crawler, find_sources
from examples.news.show import check_line

PATIENCE_S = 60
BRIDGE = Fingerprinted("bridge-1", "bridge reopens", 0.0)
COPY = Fingerprinted("bridge-2", "bridge reopens", 1.0)
SNOW = Fingerprinted("snow-1", "snow falls", 2.0)


def test_lost_and_doubled_are_counted_apart() -> None:
    found = compare("step", "aabc", "abbb")
    assert (found.records_in, found.records_out) == (4, 4)
    assert (found.lost, found.doubled) == (2, 2)
    assert not found.is_right
    assert compare("step", "ab", "ba").is_right


def test_a_copy_of_a_clean_article_is_not_lost() -> None:
    assert check_copies([BRIDGE, COPY, SNOW], [BRIDGE, SNOW]).is_right


def test_an_article_without_its_story_is_lost() -> None:
    assert check_copies([BRIDGE, COPY, SNOW], [BRIDGE]).lost == 1


def test_an_article_that_changed_its_title_is_the_same() -> None:
    changed = Fingerprinted("bridge-2", "bridge closed", 3.0)  # its first title was a copy
    assert check_copies([BRIDGE, COPY, changed], [BRIDGE]).is_right


@pytest.mark.parametrize("again", [BRIDGE, COPY])
def test_a_story_that_is_there_twice_is_doubled(again: Fingerprinted) -> None:
    assert check_copies([BRIDGE, COPY], [BRIDGE, again]).doubled == 1


def test_a_story_that_comes_again_after_days_is_new() -> None:
    later = Fingerprinted("bridge-1", "bridge reopens", SAME_STORY_S)
    assert count_repeats([BRIDGE, later]) == 0


def test_each_entry_of_the_feeds_is_in_the_topic_once() -> None:
    sources = find_sources([SHIPPED_FEEDS])
    with ottla.testing.broker() as address:
        topics.create_topics(address)
        crawler = Crawler(address, sources)
        list(crawler.visit_all(2))
        partly = check_crawl(address, sources)
        assert partly.records_out == 2 * len(sources)
        assert partly.lost == partly.records_in - partly.records_out
        list(crawler.visit_all())
        assert check_crawl(address, sources).is_right
        copy_first_record(address)
        assert check_crawl(address, sources).doubled == 1
        crawler.close()


def copy_first_record(address: str) -> None:
    _, value = next(topics.read_all(address, topics.RAW))
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topics.RAW, json.dumps(value))
    assert producer.flush(PATIENCE_S) == 0


def test_a_check_is_one_line() -> None:
    check = Check(step="raw to clean", records_in=86, records_out=57, lost=0, doubled=1)
    assert check_line(check) == "check      raw to clean        86 in    57 out  lost 0  doubled 1"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--check"], "--check needs --once"),
        (["--kills", "--once"], "--kills starts a broker of its own"),
        (["--kills", "--broker", "127.0.0.1:9092"], "--kills starts a broker of its own"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_run(words)
    assert problem in capsys.readouterr().err


def test_kills_is_for_the_default_directory_too() -> None:
    asked = parse_run(["--kills"])
    assert asked.is_killed
    assert asked.client_log == Path("data", "news", "clients.log")
