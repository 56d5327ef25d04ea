"""Dead-letter partitions that other brokers lead: an ordinary idempotent Produce, and a search."""

from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.partitions import FetchLimits, fetch, list_offsets
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    PeerError,
    RequestTimedOut,
)
from ottla.model import BrokerId, Offset, TopicPartition
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.queues.share_state import Sender
from ottla.records.batch import batches
from ottla.replication.partition import ACKS_ALL
from ottla.replication.peers import Peers

_LANE: Final = "dead letters"
_PRODUCE_S: Final = 30.0
_RESPONSE_S: Final = 35.0  # more than the leader lets a batch take
_LIMITS: Final = FetchLimits(wait_ms_max=0, bytes_min=0, partition_bytes_max=1 << 20)
_LOST_SEQUENCE: Final[dict[int, type[ApiError]]] = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequence,
    ErrorCode.UNKNOWN_PRODUCER_ID: OutOfOrderSequence,
    ErrorCode.INVALID_PRODUCER_EPOCH: InvalidProducerEpoch,
}


class PeerDeadLetters:
    """Appends to dead-letter partitions of other brokers, and searches them."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def append(self, leader: BrokerId, sender: Sender, batch: bytearray) -> None:
        """Append a batch, or find it appended already; it is committed when this returns."""
        data = PartitionProduceData(index=sender.partition, records=batch)
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=int(_PRODUCE_S * 1000),
            topic_data=[TopicProduceData(topic_id=sender.topic_id, partition_data=[data])],
        )
        try:
            response = await self._peers.send(
                leader, request, ProduceResponse, timeout_s=_RESPONSE_S, lane=_LANE
            )
        except ClientError as problem:
            raise RequestTimedOut(f"broker {leader} did not respond: {problem}") from problem
        results = [one for topic in response.responses for one in topic.partition_responses]
        if len(results) != 1:
            raise RequestTimedOut(f"broker {leader} did not respond about the batch")
        code, text = results[0].error_code, results[0].error_message or ""
        if code in _LOST_SEQUENCE:
            raise _LOST_SEQUENCE[code](text)
        if code not in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            raise PeerError(code, f"broker {leader}: {text}")

    async def has_batch(self, tp: TopicPartition, sender: Sender, since_ms: int) -> bool:
        """True if the batch of this sequence is in the partition, from a time on."""
        registration = self._peers.registration
        if registration is None:
            raise RequestTimedOut("this broker is not registered")
        client = Client(
            [registration.endpoint], client_id="ottla-dead-letters", timeout_s=_PRODUCE_S
        )
        try:
            return await self._search(client, tp, sender, since_ms)
        except ClientError as problem:
            raise RequestTimedOut(f"{tp} could not be searched: {problem}") from problem
        finally:
            await client.close()

    async def _search(
        self, client: Client, tp: TopicPartition, sender: Sender, since_ms: int
    ) -> bool:
        at = (await list_offsets(client, {tp: since_ms})).get(tp)
        while at is not None:
            found = await fetch(client, await client.leader_of(tp), {tp: at}, limits=_LIMITS)
            end: Offset | None = None
            for header, _ in batches(found[tp].batches if tp in found else b""):
                if (header.producer_id, header.base_sequence) == (
                    sender.producer_id,
                    sender.sequence,
                ):
                    return True
                end = header.next_offset
            at = end
        return False
