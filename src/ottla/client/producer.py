"""Writes records so that trying again never writes them twice."""

from collections.abc import Sequence
from typing import Final, Self

from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, DeadlineExceeded, Refused, Unreachable, check
from ottla.client.partitions import produce_once
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TopicPartition
from ottla.model import Sequence as SequenceNumber
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import SEQUENCE_MASK, Record, build_batch
from ottla.records.compression import Codec

_AGAIN: Final = (Unreachable, ConnectionLost, DeadlineExceeded)


class IdempotentProducer:
    """Owns a producer id and the sequence of what it has written to each partition.

    One write to a partition at a time. After one that failed it is not known what was written:
    make a new producer.
    """

    def __init__(
        self, client: Client, producer_id: ProducerId, epoch: ProducerEpoch, codec: Codec
    ) -> None:
        self._client = client
        self._producer_id = producer_id
        self._epoch = epoch
        self._codec = codec
        self._sequences: dict[TopicPartition, int] = {}

    @classmethod
    async def open(cls, client: Client, codec: Codec = Codec.NONE) -> Self:
        """Ask the cluster for a producer id."""

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = await client.ask_any(request, InitProducerIdResponse)
            check(answer.error_code, "a producer id")
            return answer

        answer = await client.retry(attempt, on=_AGAIN)
        return cls(
            client, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch), codec
        )

    async def write(self, tp: TopicPartition, letters: Sequence[Record]) -> None:
        """Append records as one batch; returns when they are as safe as acks=all makes them."""
        sequence = self._sequences.get(tp, 0)
        batch = build_batch(
            letters,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=SequenceNumber(sequence),
        )
        try:
            await self._client.retry(lambda: produce_once(self._client, tp, batch), on=_AGAIN)
        except Refused as problem:
            if problem.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise  # a duplicate is what an earlier try has written
        self._sequences[tp] = (sequence + len(letters)) & SEQUENCE_MASK
