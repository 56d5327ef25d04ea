"""An idempotent producer: retries never write records twice."""

from collections.abc import Sequence
from typing import Self

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, Refused, check
from ottla.client.partitions import TransactionTag, produce_once
from ottla.errors import ErrorCode
from ottla.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from ottla.model import Sequence as SequenceNumber
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import SEQUENCE_MASK, Packed, Record, pack, seal
from ottla.records.compression import Codec


class IdempotentProducer:
    """Owns a producer id and the next sequence of each partition.

    One write to a partition at a time. After a failed write its outcome is unknown: open a new
    producer.
    """

    def __init__(
        self,
        client: Client,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        codec: Codec,
        transaction: TransactionTag | None = None,
    ) -> None:
        """`transaction` is set by `TransactionalProducer`, which begins and ends transactions."""
        self._client = client
        self._producer_id = producer_id
        self._epoch = epoch
        self._codec = codec
        self._transaction = transaction
        self._sequences: dict[TopicPartition, int] = {}

    @classmethod
    async def open(cls, client: Client, codec: Codec = Codec.NONE) -> Self:
        """A producer with a new producer id from the cluster."""

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response = await client.send_to_any(request, InitProducerIdResponse)
            check(response.error_code, "a producer id")
            return response

        response = await client.retry(attempt, on=TRANSPORT_ERRORS)
        return cls(
            client, ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch), codec
        )

    async def write(self, tp: TopicPartition, records: Sequence[Record]) -> Offset | None:
        """Append records as one batch with acks=all.

        Returns the offset of the first one, or None if an earlier attempt wrote them and the
        broker no longer knows where.
        """
        return await self.write_packed(tp, pack(records))

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> Offset | None:
        """`write` for packed records."""
        sequence = self._sequences.get(tp, 0)
        batch = seal(
            packed,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=SequenceNumber(sequence),
            is_transactional=self._transaction is not None,
        )

        async def attempt() -> Offset | None:
            return await produce_once(self._client, tp, batch, transaction=self._transaction)

        offset: Offset | None = None
        try:
            offset = await self._client.retry(attempt, on=TRANSPORT_ERRORS)
        except Refused as problem:
            if problem.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise  # an earlier attempt has written the batch
        self._sequences[tp] = (sequence + packed.record_count) & SEQUENCE_MASK
        return offset
