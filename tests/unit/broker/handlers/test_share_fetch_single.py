"""A ShareFetch that is read and written without the codec gets the response that the codec writes.

Two groups read the same partition through the same requests. Those of the first are decoded by the
codec, those of the second are read by hand.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.handled import Handled, handle
from ottla.broker.deferred import Deferred
from ottla.broker.handlers.share_fetch import ShareFetch
from ottla.broker.services import RequestContext
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition, Uuid
from ottla.protocol.api import ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import decode, encode
from ottla.protocol.hot_share import SingleShareFetched, read_single
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
)
from ottla.records.batch import Record, build_batch
from ottla.replication.partition import ACKS_ALL

TP = TopicPartition("t", 0)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
OTHER_TOPIC = Uuid(b"o" * 16)
Said = tuple[int, int, int] | None


class Twins:
    """A member of each of two groups, which send the same requests."""

    def __init__(self, handled: Handled, version: int) -> None:
        self.handled = handled
        self.version = version
        self.topic_id = handled.services.state.image.topics["t"].id
        self.epoch = 0
        self.by_hand_count = 0  # responses that were written without the codec

    async def join(self) -> None:
        for group_id in ("codec", "hand"):
            await self.handled.begin_at_the_first_record(group_id)
            request = ShareGroupHeartbeatRequest(
                group_id=group_id, member_id="m", subscribed_topic_names=["t"]
            )
            response = await self.handled.call(ApiKey.SHARE_GROUP_HEARTBEAT, request, 1)
            assert not response.error_code, response

    async def fetch(self, said: Said = None, **changes: Any) -> ShareFetchResponse:
        """The response, which is the same for both."""
        topic_id = changes.pop("topic_id", self.topic_id)
        epoch, self.epoch = self.epoch, self.epoch + 1
        frames = []
        for group_id in ("codec", "hand"):
            batches = []
            if said is not None:
                first, last, kind = said
                batches = [
                    AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=[kind]
                    )
                ]
            partition = ShareFetchPartition(partition_index=0, acknowledgement_batches=batches)
            limits = {"max_wait_ms": 10_000, "max_records": 1, "share_session_epoch": epoch}
            request = ShareFetchRequest(
                group_id=group_id,
                member_id="m",
                topics=[ShareFetchTopic(topic_id=topic_id, partitions=[partition])],
                **(limits | changes),
            )
            is_short = group_id == "hand"
            frames.append(await asyncio.wait_for(self._frame(request, is_short=is_short), 60))
        assert frames[0] == frames[1]
        return decode(ShareFetchResponse, self.version, frames[0], 9)

    async def _frame(self, request: ShareFetchRequest, *, is_short: bool) -> bytes:
        handler = ShareFetch(self.handled.services)
        if is_short:
            single = read_single(memoryview(encode(request, self.version)), 0, self.version)
            assert single is not None, "the request is short"
            response = handler.take_single(single, None)
        else:
            response = handler(request, RequestContext(self.version, None, "", None))
        if isinstance(response, Deferred):
            ready = asyncio.Event()
            response.on_ready(ready.set)
            await ready.wait()
            response = response.message()
        if isinstance(response, SingleShareFetched):
            assert is_short, "what the codec reads it writes"
            self.by_hand_count += 1
            return response.frame(7)
        return bytes(
            response_frame(RequestHeader(ApiKey.SHARE_FETCH, self.version, 7, None), response)
        )


def put(handled: Handled, count: int) -> None:
    partition = handled.services.replicas.leaders[TP]
    batch = build_batch([Record(value=b"x") for _ in range(count)])
    partition.append(memoryview(batch), ACKS_ALL, TimestampMs(1))


def acquired(response: ShareFetchResponse) -> list[tuple[int, int, int]]:
    assert not response.error_code, response
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for one in about(response).acquired_records
    ]


def about(response: ShareFetchResponse) -> ShareFetchPartitionResponse:
    ((partition,),) = (topic.partitions for topic in response.responses)
    return partition


@pytest.mark.parametrize("version", [1, 2])
def test_both_get_the_same_responses(tmp_path: Path, version: int) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        await handled.find_coordinators()
        twins = Twins(handled, version)
        await twins.join()
        assert (await twins.fetch(max_wait_ms=100)).responses == []
        for count in (1, 1, 3, 1, 1):
            put(handled, count)
        assert acquired(await twins.fetch()) == [(0, 0, 1)]
        assert acquired(await twins.fetch((0, 0, ACCEPT))) == [(1, 1, 1)]
        assert acquired(await twins.fetch((1, 1, RELEASE))) == [(1, 1, 2)]
        assert acquired(await twins.fetch((1, 1, REJECT))) == [(2, 4, 1)]
        assert twins.by_hand_count == 4

        refused = about(await twins.fetch((0, 7, ACCEPT)))
        assert refused.acknowledge_error_code == ErrorCode.INVALID_REQUEST, "beyond what was taken"
        assert [one.first_offset for one in refused.acquired_records] == [5]
        refused = about(await twins.fetch((2, 4, RENEW)))
        assert refused.acknowledge_error_code == ErrorCode.INVALID_REQUEST
        assert acquired(await twins.fetch((2, 4, ACCEPT), max_records=0)) == []
        refused = about(await twins.fetch((3, 4, ACCEPT), max_records=0))
        assert refused.acknowledge_error_code == 0, "finished before by the same member"
        assert twins.by_hand_count == 6

        assert acquired(await twins.fetch((5, 6, ACCEPT), max_wait_ms=100)) == []
        assert (await twins.fetch(max_wait_ms=100)).responses == [], "nothing more, and none waits"
        put(handled, 2)
        assert acquired(await twins.fetch(max_records=9)) == [(7, 8, 1)]

        wrong = await twins.fetch((7, 8, ACCEPT), share_session_epoch=1)
        assert wrong.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        twins.epoch -= 1
        opening = await twins.fetch((7, 8, ACCEPT), share_session_epoch=0)
        assert opening.error_code == ErrorCode.INVALID_REQUEST
        twins.epoch -= 1
        lost = about(await twins.fetch(topic_id=OTHER_TOPIC, max_wait_ms=100))
        assert lost.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        closed = await twins.fetch((7, 7, ACCEPT), share_session_epoch=-1)
        assert about(closed).acknowledge_error_code == 0
        none = await twins.fetch((8, 8, ACCEPT))
        assert none.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    handle(
        tmp_path,
        scenario,
        share_coordinator_state_topic_num_partitions="1",
    )
