"""A consumer of a share group that fetches from several brokers at once."""

import asyncio
from collections.abc import Sequence

import pytest

from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.share_consumer import ShareConsumer
from ottla.client.share_records import AcknowledgeKind, Acknowledgement, ShareRecord
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, Offset, TopicPartition, Uuid
from ottla.records.batch import Record

TP = TopicPartition("jobs", 0)
NOWHERE = Endpoint("127.0.0.1", 9)
FAR_S = 2.0**40


class OpenSession:
    """A session that remembers what was acknowledged."""

    is_open = True
    endpoint = NOWHERE

    def __init__(self) -> None:
        self.said: list[Acknowledgement] = []

    async def acknowledge(self, said: Sequence[Acknowledgement]) -> None:
        self.said += said


async def refused() -> list[ShareRecord]:
    raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "jobs")


def held(offset: int, *, until_s: float = FAR_S, session: OpenSession) -> ShareRecord:
    return ShareRecord(TP, Uuid(bytes(16)), Record(offset=Offset(offset)), 1, until_s, session)


async def acquired(*offsets: int, session: OpenSession) -> list[ShareRecord]:
    return [held(offset, session=session) for offset in offsets]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_other_brokers_have_given_out_is_not_lost_with_the_one_that_refuses(
    failing: int,
) -> None:
    async def scenario() -> None:
        async with Client([NOWHERE]) as client:
            consumer = ShareConsumer(client, "g", ["jobs"])
            consumer._fetches = {
                BrokerId(one): asyncio.create_task(
                    refused() if one == failing else acquired(one, session=OpenSession())
                )
                for one in range(3)
            }
            await asyncio.wait(consumer._fetches.values())
            with pytest.raises(Refused):
                consumer._collect()
            assert [one.offset for one in consumer._take(10)] == sorted({0, 1, 2} - {failing})

    asyncio.run(scenario())


def test_records_whose_locks_have_ended_are_not_returned() -> None:
    async def scenario() -> None:
        async with Client([NOWHERE]) as client:
            consumer, session = ShareConsumer(client, "g", ["jobs"]), OpenSession()
            now_s = asyncio.get_running_loop().time()
            consumer._acquired = [
                held(1, until_s=now_s - 0.1, session=session),
                held(2, session=session),
            ]
            assert [one.offset for one in consumer._take(10)] == [2]
            assert consumer._take(10) == []

    asyncio.run(scenario())


def test_what_is_more_than_was_asked_for_is_given_back_as_if_it_had_not_been_delivered() -> None:
    async def scenario() -> None:
        async with Client([NOWHERE]) as client:
            consumer, session = ShareConsumer(client, "g", ["jobs"]), OpenSession()
            brokers = [BrokerId(0), BrokerId(1)]
            consumer._fetches = {
                broker: asyncio.create_task(acquired(broker, 10 + broker, session=session))
                for broker in brokers
            }
            found = await consumer._fetch_any(brokers, 3, 1000)
            assert [one.offset for one in found] == [0, 10, 1]
            (back,) = session.said
            assert (back.record.offset, back.kind) == (11, AcknowledgeKind.RELEASE)
            assert (back.delay_ms, back.is_counted) == (0, False)
            assert consumer._take(10) == []

    asyncio.run(scenario())
