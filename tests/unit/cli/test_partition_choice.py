"""Partitions named on a command line are those of the topic, or refused."""

import asyncio

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.cli.partition_choice import choose_partitions
from ottla.client.client import Client
from ottla.errors import UsageRefused
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey


def chosen(indexes: frozenset[int] | None) -> list[TopicPartition]:
    async def run() -> list[TopicPartition]:
        metadata = OneTopic("orders", partition_count=3)
        async with AnsweringBroker({ApiKey.METADATA: metadata}) as broker, asyncio.timeout(10):
            metadata.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=1) as client:
                return await choose_partitions(client, {"orders": indexes})

    return asyncio.run(run())


def test_no_choice_is_every_partition() -> None:
    assert chosen(None) == [TopicPartition("orders", index) for index in range(3)]


def test_chosen_partitions_are_in_order() -> None:
    assert chosen(frozenset({2, 0})) == [TopicPartition("orders", 0), TopicPartition("orders", 2)]


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(UsageRefused, match="topic orders has no partition 3, only 0 to 2"):
        chosen(frozenset({1, 3}))
