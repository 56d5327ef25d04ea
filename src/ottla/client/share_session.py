"""A share session: the partitions that a member of a share group fetches from one broker.

Its connection is its own: a fetch that waits would hold up the responses of other requests, and a
session ends with its connection. Fetches and acknowledgements count one epoch together, so a number
is taken in the same step in which its request is sent; an acknowledgement that follows a waiting
fetch ends its wait.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ottla.client.connection import Connection
from ottla.client.errors import ClientError, Refused, check
from ottla.client.share_records import (
    AcknowledgeKind,
    Acknowledgement,
    ShareRecord,
    batches_of,
    decode_acquired,
)
from ottla.errors import ErrorCode
from ottla.model import Endpoint, TopicPartition, Uuid
from ottla.protocol.messages.share_groups import (
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareForgottenTopic,
)

_OPENING: Final = 0  # instead of an epoch
_CLOSING: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
_STRICT: Final = 1  # ShareAcquireMode: no more records than wanted
_FETCH_BYTES_MAX: Final = 16 << 20
_RESPONSE_MARGIN_S: Final = 10.0  # how much longer a response may take than the broker may wait
_NOT_HELD: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})

Response = TypeVar("Response", ShareFetchResponse, ShareAcknowledgeResponse)


class Fetched(NamedTuple):
    """Records of a fetch, and the errors of partitions without."""

    records: list[ShareRecord]
    problems: dict[TopicPartition, Refused]


class ShareSession:
    """A session, from its first fetch to the end of its connection."""

    def __init__(self, connection: Connection, group_id: str, member_id: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._member_id = member_id
        self._epoch = _OPENING  # of the next request
        self._exchanges: dict[asyncio.Task[Any], None] = {}
        self._names: dict[Uuid, str] = {}
        self._partitions: dict[TopicPartition, Uuid] = {}  # that the broker knows of

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def endpoint(self) -> Endpoint:
        """The address of the broker."""
        return self._connection.endpoint

    @property
    def is_new(self) -> bool:
        """True until its first request was sent."""
        return self._epoch == _OPENING

    def abandon(self) -> None:
        """End without a word, as after an error: the broker releases what was acquired."""
        self._connection.close()

    # Fetching

    async def fetch(
        self, partitions: Mapping[TopicPartition, Uuid], records_max: int, wait_ms: int
    ) -> Fetched:
        """Acquire records of these partitions; 0 records ends the wait of a fetch before it."""
        added = {tp: id_ for tp, id_ in partitions.items() if self._partitions.get(tp) != id_}
        removed = {tp: id_ for tp, id_ in self._partitions.items() if partitions.get(tp) != id_}
        self._partitions = dict(partitions)
        self._names.update({id_: tp.topic for tp, id_ in partitions.items()})
        request = ShareFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=self._next_epoch(),
            max_wait_ms=wait_ms,
            min_bytes=1 if records_max else 0,
            max_bytes=_FETCH_BYTES_MAX if records_max else 0,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=_STRICT,
            topics=[
                ShareFetchTopic(
                    topic_id=id_,
                    partitions=[ShareFetchPartition(partition_index=index) for index in indexes],
                )
                for id_, indexes in _by_id(added).items()
            ],
            forgotten_topics_data=[
                ShareForgottenTopic(topic_id=id_, partitions=indexes)
                for id_, indexes in _by_id(removed).items()
            ],
        )
        response = await self._send(request, ShareFetchResponse, wait_ms)
        lock_end_s = _now_s() + response.acquisition_lock_timeout_ms / 1000
        found = Fetched([], {})
        for topic in response.responses:
            for one in topic.partitions:
                tp = TopicPartition(self._names.get(topic.topic_id, "?"), one.partition_index)
                if one.error_code:
                    found.problems[tp] = _refusal(tp, one.error_code, one.error_message)
                else:
                    self._take(tp, topic.topic_id, one, lock_end_s, found.records)
        await self._acknowledge_gaps(found.records)
        return found

    def _take(
        self,
        tp: TopicPartition,
        topic_id: Uuid,
        response: ShareFetchPartitionResponse,
        lock_end_s: float,
        out: list[ShareRecord],
    ) -> None:
        if response.acquired_records and response.records is not None:
            assert not isinstance(response.records, tuple | list), "a response has one buffer"
            out += (
                ShareRecord(tp, topic_id, record, count, lock_end_s, self)
                for record, count in decode_acquired(
                    tp, response.records, response.acquired_records
                )
            )

    async def _acknowledge_gaps(self, found: list[ShareRecord]) -> None:
        gaps = [record for record in found if not record.delivery_count]
        if gaps:
            found[:] = [record for record in found if record.delivery_count]
            await self.acknowledge([Acknowledgement(one, AcknowledgeKind.GAP) for one in gaps])

    # Acknowledging

    async def acknowledge(self, said: Sequence[Acknowledgement]) -> None:
        """Acknowledge; each record's `failure` says whether that has an effect.

        A broker takes all acknowledgements of a partition or none: of those that it refuses
        together, halves are sent again, until the one is found that is not acquired any more.
        """
        by_partition: dict[TopicPartition, list[Acknowledgement]] = {}
        for item in said:
            by_partition.setdefault(item.record.tp, []).append(item)
        todo = list(by_partition.values())
        while todo:
            round_, todo = todo, []
            # One list of a partition in each request.
            taken: dict[TopicPartition, list[Acknowledgement]] = {}
            for items in round_:
                if items[0].record.tp in taken:
                    todo.append(items)
                else:
                    taken[items[0].record.tp] = items
            for tp, problem in (await self._acknowledge(taken)).items():
                items = taken[tp]
                if problem is not None and problem.code in _NOT_HELD and len(items) > 1:
                    middle = len(items) // 2
                    todo += [items[:middle], items[middle:]]
                else:
                    for item in items:
                        item.record.failure = problem

    async def _acknowledge(
        self, said: Mapping[TopicPartition, Sequence[Acknowledgement]]
    ) -> dict[TopicPartition, Refused | None]:
        """Send one request; the result of each partition."""
        first = next(iter(said.values()))
        request = self._request(said, is_renewal=first[0].kind is AcknowledgeKind.RENEW)
        try:
            response = await self._send(request, ShareAcknowledgeResponse)
        except ClientError as problem:
            for item in (item for items in said.values() for item in items):
                item.record.failure = problem
            return {}
        lock_end_s = _now_s() + response.acquisition_lock_timeout_ms / 1000
        missing = "the broker did not respond about it"
        results: dict[TopicPartition, Refused | None] = {
            tp: _refusal(tp, ErrorCode.UNKNOWN_SERVER_ERROR, missing) for tp in said
        }
        for topic in response.responses:
            for one in topic.partitions:
                tp = TopicPartition(self._names.get(topic.topic_id, "?"), one.partition_index)
                code, text = one.error_code, one.error_message
                results[tp] = _refusal(tp, code, text) if code else None
        if request.is_renew_ack:
            for tp in (tp for tp, problem in results.items() if problem is None):
                for item in said[tp]:
                    item.record.lock_end_s = lock_end_s
        return results

    def _request(
        self,
        said: Mapping[TopicPartition, Sequence[Acknowledgement]],
        *,
        is_renewal: bool,
        is_last: bool = False,
    ) -> ShareAcknowledgeRequest:
        topics: dict[Uuid, ShareAcknowledgeTopic] = {}
        for tp, items in said.items():
            topic_id = items[0].record.topic_id
            topic = topics.setdefault(topic_id, ShareAcknowledgeTopic(topic_id=topic_id))
            topic.partitions.append(
                ShareAcknowledgePartition(
                    partition_index=tp.partition, acknowledgement_batches=batches_of(items)
                )
            )
        return ShareAcknowledgeRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=_CLOSING if is_last else self._next_epoch(),
            is_renew_ack=is_renewal,
            topics=list(topics.values()),
        )

    async def close(self) -> None:
        """Give back what is not acknowledged, as if it had not been delivered."""
        if self._connection.is_open and self._epoch != _OPENING:
            request = self._request({}, is_renewal=False, is_last=True)
            await self._send(request, ShareAcknowledgeResponse)
        self._connection.close()

    # Exchange

    def _next_epoch(self) -> int:
        """The epoch of a request that is sent in this step: tasks run in the order of creation."""
        epoch, self._epoch = self._epoch, self._epoch % _EPOCH_MAX + 1
        return epoch

    async def _send(
        self, request: object, response_class: type[Response], wait_ms: int = 0
    ) -> Response:
        """The response. A caller that is cancelled leaves the session as it is."""
        exchange = asyncio.create_task(self._exchange(request, response_class, wait_ms))
        self._exchanges[exchange] = None
        exchange.add_done_callback(self._note_done)
        return await asyncio.shield(exchange)

    async def _exchange(
        self, request: object, response_class: type[Response], wait_ms: int
    ) -> Response:
        """Send a request; after an error the session is over: its epoch is not known any more."""
        try:
            response = await self._connection.send(
                request, response_class, timeout_s=wait_ms / 1000 + _RESPONSE_MARGIN_S
            )
            check(response.error_code, f"share group {self._group_id}", response.error_message)
        except BaseException:
            self.abandon()
            raise
        return response

    def _note_done(self, exchange: "asyncio.Task[Any]") -> None:
        self._exchanges.pop(exchange, None)
        if not exchange.cancelled():
            exchange.exception()  # its caller may have gone


def _refusal(tp: TopicPartition, code: int, text: str | None) -> Refused:
    try:
        check(code, str(tp), text)
    except Refused as problem:
        return problem
    raise AssertionError(f"{tp}: {code} is no error")


def _by_id(partitions: Mapping[TopicPartition, Uuid]) -> dict[Uuid, list[int]]:
    found: dict[Uuid, list[int]] = {}
    for tp, id_ in partitions.items():
        found.setdefault(id_, []).append(tp.partition)
    return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()
