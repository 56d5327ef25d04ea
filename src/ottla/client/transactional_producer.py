"""A transactional producer: the records of a transaction are committed together or not at all.

Supports both versions of transactions (KIP-890), as the cluster has finalized. In the newer one a
partition joins a transaction when it is written to, and each end of one raises the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Fenced, Refused, check
from ottla.client.partitions import TransactionTag
from ottla.client.producer import IdempotentProducer
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from ottla.records.batch import Packed
from ottla.records.compression import Codec

TIMEOUT_MS: Final = 60_000

_ADDED_BY_CLIENTS: Final = 3  # later versions of AddPartitionsToTxn are for brokers
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer of a transactional id: its producer id and epoch."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """A version of transactions: how partitions join, and the highest request versions."""

    is_joined_by_writing: bool
    produce_version_max: int
    end_version_max: int


_CLASSIC: Final = _Flow(
    is_joined_by_writing=False,
    produce_version_max=11,
    end_version_max=4,
)
_JOINED_BY_WRITING: Final = _Flow(
    is_joined_by_writing=True,
    produce_version_max=12,  # the last one with topic names
    end_version_max=5,
)
_JOINED_BY_WRITING_FROM: Final = 2  # the finalized transaction.version


class TransactionalProducer:
    """Owns a transactional id, until another producer opens it. One transaction at a time.

    The first write begins a transaction. One write to a partition at a time. After a failed write
    its outcome is unknown: abort, and open the id again.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        codec: Codec,
        flow: _Flow,
        producer: tuple[ProducerId, ProducerEpoch],
    ) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._codec = codec
        self._flow = flow
        self._joined: set[TopicPartition] = set()
        self._has_begun = False
        self._begin_epoch(*producer)

    @classmethod
    async def open(
        cls,
        client: Client,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        codec: Codec = Codec.NONE,
    ) -> Self:
        """Take over the id: its last producer is fenced, and its open transaction aborted.

        Returns when that is done. `timeout_ms` limits a transaction.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )

        async def attempt() -> Self:
            is_new = await client.transaction_version() >= _JOINED_BY_WRITING_FROM
            response = await client.send_to_transaction_coordinator(
                transactional_id, request, InitProducerIdResponse
            )
            check(response.error_code, f"transactional id {transactional_id}")
            return cls(
                client,
                transactional_id,
                codec,
                _JOINED_BY_WRITING if is_new else _CLASSIC,
                (ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch)),
            )

        with _raising_fenced(transactional_id):
            return await client.retry(attempt, on=TRANSPORT_ERRORS)

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> None:
        """Append records as one batch of the transaction."""
        self._has_begun = True
        with _raising_fenced(self._transactional_id):
            if not self._flow.is_joined_by_writing and tp not in self._joined:
                await self._client.retry(lambda: self._add_partition(tp), on=TRANSPORT_ERRORS)
                self._joined.add(tp)
            await self._writer.write_packed(tp, packed)

    async def commit(self) -> None:
        """Commit the transaction; it is committed when this returns."""
        await self._end(is_committed=True, timeout_s=None)

    async def abort(self, timeout_s: float | None = None) -> None:
        """Abort the transaction. The next write begins another one."""
        try:
            await self._end(is_committed=False, timeout_s=timeout_s)
        except Refused as problem:
            if problem.code is not ErrorCode.INVALID_TXN_STATE:
                raise  # else the coordinator knows of no transaction to end

    @property
    def identity(self) -> ProducerIdentity:
        """The producer's identity, with which `end_transaction` can end its transaction."""
        return ProducerIdentity(self._transactional_id, self._producer_id, self._epoch)

    # Internals

    def _begin_epoch(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        """Start an epoch; sequences start at 0 in every one."""
        self._producer_id = producer_id
        self._epoch = epoch
        tag = TransactionTag(self._transactional_id, self._flow.produce_version_max)
        self._writer = IdempotentProducer(self._client, producer_id, epoch, self._codec, tag)

    async def _add_partition(self, tp: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )
        response = await self._client.send_to_transaction_coordinator(
            self._transactional_id,
            request,
            AddPartitionsToTxnResponse,
            version_max=_ADDED_BY_CLIENTS,
        )
        for topic in response.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                check(partition.partition_error_code, str(tp))

    async def _end(self, *, is_committed: bool, timeout_s: float | None) -> None:
        if not self._has_begun:
            return  # a coordinator refuses to end an unknown transaction
        response = await _end(self._client, self.identity, self._flow, is_committed, timeout_s)
        self._has_begun = False
        self._joined.clear()
        if self._flow.is_joined_by_writing:
            self._begin_epoch(
                ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch)
            )


async def end_transaction(
    client: Client,
    producer: ProducerIdentity,
    *,
    is_committed: bool,
    timeout_s: float | None = None,
) -> None:
    """End the open transaction of another producer, by its identity."""
    is_new = await client.transaction_version() >= _JOINED_BY_WRITING_FROM
    flow = _JOINED_BY_WRITING if is_new else _CLASSIC
    await _end(client, producer, flow, is_committed, timeout_s)


async def _end(
    client: Client,
    producer: ProducerIdentity,
    flow: _Flow,
    is_committed: bool,
    timeout_s: float | None,
) -> EndTxnResponse:
    """Send EndTxn; it may be sent twice, because a coordinator recognises a repeated end."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=is_committed,
    )

    async def attempt() -> EndTxnResponse:
        response = await client.send_to_transaction_coordinator(
            producer.transactional_id,
            request,
            EndTxnResponse,
            version_max=flow.end_version_max,
        )
        check(response.error_code, f"transactional id {producer.transactional_id}")
        return response

    with _raising_fenced(producer.transactional_id):
        return await client.retry(attempt, on=TRANSPORT_ERRORS, timeout_s=timeout_s)


@contextmanager
def _raising_fenced(transactional_id: str) -> Iterator[None]:
    """Raise the several error codes of a fenced producer as `Fenced`."""
    try:
        yield
    except Refused as problem:
        if problem.code in _FENCED:
            raise Fenced(transactional_id) from None
        raise
