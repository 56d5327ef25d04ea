"""Writes records so that trying again never writes them twice."""

from collections.abc import Sequence
from typing import Final, Self

from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, DeadlineExceeded, Refused, Unreachable, check
from ottla.client.partitions import TransactionTag, produce_once
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.model import Sequence as SequenceNumber
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import SEQUENCE_MASK, Packed, Record, pack, seal
from ottla.records.compression import Codec

# Asking for an id twice does no harm, and a batch that was written already is left out.
TRANSPORT_PROBLEMS: Final = (Unreachable, ConnectionLost, DeadlineExceeded)


class IdempotentProducer:
    """Owns a producer id and the sequence of what it has written to each partition.

    One write to a partition at a time. After one that failed it is not known what was written:
    make a new producer.
    """

    def __init__(
        self,
        client: Client,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        codec: Codec,
        transaction: TransactionTag | None = None,
    ) -> None:
        """With `transaction`, for the producer that owns it: it says when one begins and ends."""
        self._client = client
        self._producer_id = producer_id
        self._epoch = epoch
        self._codec = codec
        self._transaction = transaction
        self._sequences: dict[TopicPartition, int] = {}

    @classmethod
    async def open(cls, client: Client, codec: Codec = Codec.NONE) -> Self:
        """Ask the cluster for a producer id."""

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = await client.ask_any(request, InitProducerIdResponse)
            check(answer.error_code, "a producer id")
            return answer

        answer = await client.retry(attempt, on=TRANSPORT_PROBLEMS)
        return cls(
            client, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch), codec
        )

    async def write(self, tp: TopicPartition, letters: Sequence[Record]) -> None:
        """Append records as one batch; returns when they are as safe as acks=all makes them."""
        await self.write_packed(tp, pack(letters))

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> None:
        """`write` for records that are packed already."""
        sequence = self._sequences.get(tp, 0)
        batch = seal(
            packed,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=SequenceNumber(sequence),
            is_transactional=self._transaction is not None,
        )

        async def attempt() -> None:
            await produce_once(self._client, tp, batch, transaction=self._transaction)

        try:
            await self._client.retry(attempt, on=TRANSPORT_PROBLEMS)
        except Refused as problem:
            if problem.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise  # a duplicate is what an earlier try has written
        self._sequences[tp] = (sequence + packed.count) & SEQUENCE_MASK
