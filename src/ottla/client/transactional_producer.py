"""Writes records in transactions: all of one counts, or none of it.

Speaks both versions of transactions (KIP-890), whichever the cluster has agreed on. In the newer
one a partition joins a transaction when it is written to, and each end of one raises the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from ottla.client.client import Client
from ottla.client.errors import Fenced, Refused, check
from ottla.client.partitions import TransactionTag
from ottla.client.producer import TRANSPORT_PROBLEMS, IdempotentProducer
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
    """A producer of a transactional id, as its coordinator knows it."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """How partitions join a transaction, and the last versions of requests that go with it."""

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
    produce_version_max=12,  # the last one that calls topics by their names
    end_version_max=5,
)
_JOINED_BY_WRITING_FROM: Final = 2  # the transaction.version that clusters agree on


class TransactionalProducer:
    """Owns a transactional id, until the next producer that opens it. One transaction at a time.

    The first write begins a transaction. One write to a partition at a time. After a write that
    failed it is not known what was written: abort, and open the id again.
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
        """Take the id: whoever had it is fenced, and what it left open is aborted.

        Returns once that has happened. `timeout_ms` is how long a transaction may take.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )

        async def attempt() -> Self:
            is_new = await client.transaction_version() >= _JOINED_BY_WRITING_FROM
            answer = await client.ask_transaction_coordinator(
                transactional_id, request, InitProducerIdResponse
            )
            check(answer.error_code, f"transactional id {transactional_id}")
            return cls(
                client,
                transactional_id,
                codec,
                _JOINED_BY_WRITING if is_new else _CLASSIC,
                (ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)),
            )

        with _telling_of_fences(transactional_id):
            return await client.retry(attempt, on=TRANSPORT_PROBLEMS)

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> None:
        """Append records as one batch of the transaction."""
        self._has_begun = True
        with _telling_of_fences(self._transactional_id):
            if not self._flow.is_joined_by_writing and tp not in self._joined:
                await self._client.retry(lambda: self._add_partition(tp), on=TRANSPORT_PROBLEMS)
                self._joined.add(tp)
            await self._writer.write_packed(tp, packed)

    async def commit(self) -> None:
        """End the transaction: all of it counts once this returns."""
        await self._end(is_committed=True, patience_s=None)

    async def abort(self, patience_s: float | None = None) -> None:
        """End the transaction: nothing of it counts. The next write begins another one."""
        try:
            await self._end(is_committed=False, patience_s=patience_s)
        except Refused as problem:
            if problem.code is not ErrorCode.INVALID_TXN_STATE:
                raise  # else nothing had reached the coordinator: there is nothing to end

    @property
    def identity(self) -> ProducerIdentity:
        """Whose transaction it is: with it, somebody else can end the transaction."""
        return ProducerIdentity(self._transactional_id, self._producer_id, self._epoch)

    # Inside

    def _begin_epoch(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        """Sequences count anew in every epoch."""
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
        answer = await self._client.ask_transaction_coordinator(
            self._transactional_id,
            request,
            AddPartitionsToTxnResponse,
            version_max=_ADDED_BY_CLIENTS,
        )
        for topic in answer.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                check(partition.partition_error_code, str(tp))

    async def _end(self, *, is_committed: bool, patience_s: float | None) -> None:
        if not self._has_begun:
            return  # a coordinator refuses to end what it has never heard of
        answer = await _end(self._client, self.identity, self._flow, is_committed, patience_s)
        self._has_begun = False
        self._joined.clear()
        if self._flow.is_joined_by_writing:
            self._begin_epoch(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))


async def end_transaction(
    client: Client,
    producer: ProducerIdentity,
    *,
    is_committed: bool,
    patience_s: float | None = None,
) -> None:
    """End the transaction that a producer has left open, in its name."""
    is_new = await client.transaction_version() >= _JOINED_BY_WRITING_FROM
    flow = _JOINED_BY_WRITING if is_new else _CLASSIC
    await _end(client, producer, flow, is_committed, patience_s)


async def _end(
    client: Client,
    producer: ProducerIdentity,
    flow: _Flow,
    is_committed: bool,
    patience_s: float | None,
) -> EndTxnResponse:
    """The same end twice does no harm: a coordinator knows what it has been told."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=is_committed,
    )

    async def attempt() -> EndTxnResponse:
        answer = await client.ask_transaction_coordinator(
            producer.transactional_id,
            request,
            EndTxnResponse,
            version_max=flow.end_version_max,
        )
        check(answer.error_code, f"transactional id {producer.transactional_id}")
        return answer

    with _telling_of_fences(producer.transactional_id):
        return await client.retry(attempt, on=TRANSPORT_PROBLEMS, patience_s=patience_s)


@contextmanager
def _telling_of_fences(transactional_id: str) -> Iterator[None]:
    """What brokers have several words for becomes `Fenced`."""
    try:
        yield
    except Refused as problem:
        if problem.code in _FENCED:
            raise Fenced(transactional_id) from None
        raise
