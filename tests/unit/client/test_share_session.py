"""Acknowledging in a share session, whatever the broker responds."""

import asyncio

from fakes.answering_broker import AnsweringBroker, Script
from ottla.client.connection import Connection
from ottla.client.errors import Refused
from ottla.client.share_records import AcknowledgeKind, Acknowledgement, ShareRecord
from ottla.client.share_session import ShareSession
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.share_groups import ShareAcknowledgeResponse
from ottla.records.batch import Record

TP = TopicPartition("jobs", 0)
ID = Uuid(b"t" * 16)


def accepted(script: Script) -> ShareRecord:
    """A record after it was accepted, with this response of the broker."""

    async def run() -> ShareRecord:
        async with AnsweringBroker({ApiKey.SHARE_ACKNOWLEDGE: script}) as broker:
            connection = await Connection.open(broker.endpoint)
            session = ShareSession(connection, "g", "m")
            record = ShareRecord(TP, ID, Record(offset=Offset(3)), 1, 0.0, session)
            async with asyncio.timeout(10):
                await session.acknowledge([Acknowledgement(record, AcknowledgeKind.ACCEPT)])
            session.abandon()
            return record

    return asyncio.run(run())


def test_an_acknowledgement_that_the_response_leaves_out_has_failed() -> None:
    failure = accepted(lambda request: ShareAcknowledgeResponse()).failure
    assert isinstance(failure, Refused)
    assert failure.code is ErrorCode.UNKNOWN_SERVER_ERROR
