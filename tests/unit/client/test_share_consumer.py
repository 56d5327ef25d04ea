"""A consumer of a share group that fetches from several brokers at once."""

import asyncio
from collections.abc import Sequence

import pytest

from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.share_consumer import ShareConsumer
from ottla.client.share_records import Acknowledgement, ShareRecord
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, Offset, TopicPartition, Uuid
from ottla.records.batch import Record

TP = TopicPartition("jobs", 0)
NOWHERE = Endpoint("127.0.0.1", 9)
FAR_S = 2.0**40


class OpenSession:
    """A session that is never asked to acknowledge anything."""

    is_open = True
    endpoint = NOWHERE

    async def acknowledge(self, said: Sequence[Acknowledgement]) -> None:
        raise AssertionError("nothing is acknowledged")


async def refused() -> list[ShareRecord]:
    raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "jobs")


async def acquired(offset: int) -> list[ShareRecord]:
    record = Record(offset=Offset(offset))
    return [ShareRecord(TP, Uuid(bytes(16)), record, 1, FAR_S, OpenSession())]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_other_brokers_have_given_out_is_not_lost_with_the_one_that_refuses(
    failing: int,
) -> None:
    async def scenario() -> None:
        async with Client([NOWHERE]) as client:
            consumer = ShareConsumer(client, "g", ["jobs"])
            consumer._fetches = {
                BrokerId(one): asyncio.create_task(refused() if one == failing else acquired(one))
                for one in range(3)
            }
            await asyncio.wait(consumer._fetches.values())
            with pytest.raises(Refused):
                consumer._collect()
            assert [one.offset for one in consumer._take(10)] == sorted({0, 1, 2} - {failing})

    asyncio.run(scenario())
