"""Produce (0), versions 3 to 13.

Batches are checked, stamped and appended straight from the connection's buffer. When every
batch already has what its acks promise, the response leaves in the same turn of the loop and
neither a task nor a future is made; otherwise the response is pending until the partitions have.

Versions 0 to 2 are listed because older librdkafka compresses only if they are (KAFKA-18659);
like any other version that is not served they close the connection, as in Kafka.
A transaction's first batch in a partition waits until it is verified (KIP-890).
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.leader_hints import HINTED_ERRORS, leader_hint
from ottla.broker.pending import Pending, Response
from ottla.broker.services import Services
from ottla.broker.traffic import Traffic
from ottla.coordinator.runtime.internal_topics import INTERNAL_TOPICS
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    ProtocolViolation,
    RecordsRefused,
    RequestTimedOut,
    TransactionalIdRefused,
    UnsupportedCompression,
)
from ottla.model import Offset
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import (
    ProducedPartition,
    ProduceRequest,
    ProduceTarget,
    read_produce,
    read_single_batch,
    write_produced,
)
from ottla.records.batch import CODEC_MASK, FLAGS_AT, HEADER_BYTES, TRANSACTIONAL
from ottla.records.compression import Codec
from ottla.replication.partition import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    LeaderPartition,
    PartitionForwarded,
    Receipt,
)

if TYPE_CHECKING:
    from ottla.broker.produce_verification import Retake, Verifications
    from ottla.replication.forwarding import ForwardedPartition, ReceivedPartition

    Written = LeaderPartition | ForwardedPartition | ReceivedPartition

_ZSTD_VERSION_MIN: Final = 7
_ANSWERED: Final = (ACKS_LEADER, ACKS_ALL)

Produced = list[tuple[TopicKey, list[ProducedPartition]]]
# With the result's indexes.
Unsettled = list[tuple["Written", Offset, int, int]]


class Produce:
    """Owner of the produce requests whose batches do not have what their acks promise yet."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._locate_writable = services.replicas.writable.locate
        self._clock = services.clock
        self._monotonic_s = services.clock.monotonic_s
        self._waiting: dict[_WaitingBatch | _WaitingBatches, float] = {}  # with their deadlines
        self.traffic = Traffic()
        self.error_counts = Counter[int]()  # by code

    def take(self, frame: memoryview, position: int, version: int, correlation_id: int) -> Response:
        single = read_single_batch(frame, position, version)
        if single is None:
            return self._take_all(frame, position, version, correlation_id)
        # The frequent case, in fewer steps: one batch that belongs to no transaction.
        target, batch = single
        acks = target.acks
        if acks not in _ANSWERED or len(batch) < HEADER_BYTES or batch[FLAGS_AT] & TRANSACTIONAL:
            return self._take_all(frame, position, version, correlation_id)
        try:
            partition = self._locate_writable(target.key, target.partition)
            if partition.tp[0] in INTERNAL_TOPICS:
                return self._take_all(frame, position, version, correlation_id)
            receipt = partition.append(batch, acks, self._clock.now_ms())
        except PartitionForwarded:
            return self._take_all(frame, position, version, correlation_id)
        except ApiError as refused:
            refusal = self.refuse(target.key, target.partition, refused)
            return write_produced(correlation_id, version, [(target.key, [refusal])])
        base_offset, end_offset, time_ms, log_start, is_settled = receipt
        traffic = self.traffic[target.key]
        traffic.batches += 1
        traffic.records += end_offset - base_offset
        traffic.size_bytes += len(batch)
        if is_settled:
            return target.response(correlation_id, base_offset, time_ms, log_start)
        waiting = _WaitingBatch(self, version, correlation_id, target, receipt)
        self._waiting[waiting] = self._monotonic_s() + max(target.timeout_ms, 0) / 1000
        partition.wait_settled(end_offset, acks, waiting.settle)
        return waiting

    def _take_all(
        self,
        frame: memoryview,
        position: int,
        version: int,
        correlation_id: int,
        verifications: "Verifications | None" = None,
    ) -> Response:
        """`verifications` are those of a request that waited for its transaction coordinator."""
        request = read_produce(frame, position, version)
        acks = request.acks
        if request.transactional_id is not None and verifications is None and acks == ACKS_ALL:
            keep = partial(self._keep, frame, position, version, correlation_id)
            held = self._services.produce_verification.hold(request, version, keep)
            if held is not None:
                return held
        now_ms = self._clock.now_ms()
        produced: Produced = []
        unsettled: Unsettled = []
        for key, batches in request.topics:
            results: list[ProducedPartition] = []
            produced.append((key, results))
            for index, sent in batches:
                try:
                    batch = _checked(sent, request, version)
                    partition = self._locate_any(key, index, request)
                    if verifications is not None:
                        verifications.check(partition, batch)
                    base_offset, end_offset, time_ms, log_start, is_settled = partition.append(
                        batch, acks, now_ms
                    )
                    if not is_settled:
                        unsettled.append((partition, end_offset, len(produced) - 1, len(results)))
                    results.append(ProducedPartition(index, 0, base_offset, time_ms, log_start))
                    traffic = self.traffic[key]
                    traffic.batches += 1
                    traffic.records += end_offset - base_offset
                    traffic.size_bytes += len(batch)
                except ApiError as refused:
                    results.append(self.refuse(key, index, refused))
        if acks == ACKS_NONE:
            _check_silence(produced)
            return None
        if not unsettled:
            return write_produced(correlation_id, version, produced)
        waiting = _WaitingBatches(self, version, correlation_id, produced, unsettled)
        self._waiting[waiting] = self._monotonic_s() + max(request.timeout_ms, 0) / 1000
        waiting.begin(acks)
        return waiting

    def _locate_any(self, key: TopicKey, index: int, request: ProduceRequest) -> "Written":
        """The partition, or its route if its batches do not end up there."""
        if request.forwarder is not None:
            return self._services.forwarding.receive(request.forwarder, key, index)
        try:
            return self._locate(key, index)
        except PartitionForwarded as forwarded:
            return self._services.forwarding.route(forwarded.tp, request.timeout_ms)

    def _locate(self, key: TopicKey, index: int) -> LeaderPartition:
        partition = self._locate_writable(key, index)
        if partition.tp[0] in INTERNAL_TOPICS:
            raise InvalidTopic(f"only brokers write to {partition.tp.topic}")
        return partition

    def _keep(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> "Retake":
        """Copy a request that is handled later: the connection reuses its buffer."""
        kept = memoryview(bytearray(frame))
        return partial(self._take_all, kept, position, version, correlation_id)

    def refuse(self, key: TopicKey, index: int, refused: ApiError) -> ProducedPartition:
        """The result of a batch that is refused."""
        self.error_counts[refused.code] += 1
        records = refused.records if isinstance(refused, RecordsRefused) else ()
        leader = None
        if refused.code in HINTED_ERRORS:
            leader = leader_hint(self._services.state.image, key, index)
        return ProducedPartition(
            index,
            refused.code,
            message=str(refused) or None,
            record_errors=records,
            leader=leader,
        )

    def expire(self) -> None:
        """Time out requests; called a few times a second."""
        now_s = self._monotonic_s()
        for waiting in [one for one, deadline_s in self._waiting.items() if deadline_s <= now_s]:
            waiting.time_out()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def note_done(self, waiting: "_WaitingBatch | _WaitingBatches") -> None:
        del self._waiting[waiting]


class _WaitingBatch(Pending):
    """The response to a request whose one batch does not have what its acks promise yet."""

    __slots__ = ("_correlation_id", "_handler", "_receipt", "_target", "_version")

    def __init__(
        self,
        handler: Produce,
        version: int,
        correlation_id: int,
        target: ProduceTarget,
        receipt: Receipt,
    ) -> None:
        super().__init__(is_barrier=False)
        self._handler = handler
        self._version = version
        self._correlation_id = correlation_id
        self._target = target
        self._receipt = receipt

    def settle(self, error: ApiError | None) -> None:
        """The promise holds, or cannot be kept."""
        if self.parts is not None:
            return  # it has timed out meanwhile
        self._handler.note_done(self)
        target, receipt = self._target, self._receipt
        if error is None:
            self.complete(
                target.response(
                    self._correlation_id,
                    receipt.base_offset,
                    receipt.append_time_ms,
                    receipt.log_start_offset,
                )
            )
        else:
            produced: Produced = [
                (target.key, [self._handler.refuse(target.key, target.partition, error)])
            ]
            self.complete(write_produced(self._correlation_id, self._version, produced))

    def time_out(self) -> None:
        self.settle(_timed_out())


class _WaitingBatches(Pending):
    """The response to a request of which some batches do not have what its acks promise yet."""

    __slots__ = ("_correlation_id", "_handler", "_left", "_produced", "_unsettled", "_version")

    def __init__(
        self,
        handler: Produce,
        version: int,
        correlation_id: int,
        produced: Produced,
        unsettled: Unsettled,
    ) -> None:
        super().__init__(is_barrier=False)
        self._handler = handler
        self._version = version
        self._correlation_id = correlation_id
        self._produced = produced
        self._unsettled = unsettled
        self._left = set(range(len(unsettled)))

    def begin(self, acks: int) -> None:
        for index, (partition, end_offset, _, _) in enumerate(self._unsettled):
            partition.wait_settled(end_offset, acks, partial(self.settle, index))

    def settle(self, index: int, error: ApiError | None) -> None:
        """The promise for the batch of this index holds, or cannot be kept."""
        if index not in self._left:
            return  # it has timed out meanwhile
        self._left.remove(index)
        partition, _, topic, result = self._unsettled[index]
        key, results = self._produced[topic]
        if error is not None:
            results[result] = self._handler.refuse(key, results[result].partition, error)
        elif not isinstance(partition, LeaderPartition) and partition.receipt is not None:
            base_offset, _, time_ms, log_start, _ = partition.receipt
            results[result] = results[result]._replace(
                base_offset=base_offset, append_time_ms=time_ms, log_start_offset=log_start
            )
        if not self._left:
            self._handler.note_done(self)
            self.complete(write_produced(self._correlation_id, self._version, self._produced))

    def time_out(self) -> None:
        for index in sorted(self._left):
            self.settle(index, _timed_out())


def _timed_out() -> RequestTimedOut:
    return RequestTimedOut("the batch was not committed in time")


def _checked(batch: memoryview | None, request: ProduceRequest, version: int) -> memoryview:
    """Returns the batch, if a request of this kind may carry it; the log checks the rest."""
    if not -1 <= request.acks <= 1:
        raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {request.acks}")
    if batch is None or len(batch) < HEADER_BYTES:
        raise InvalidRecord("a produce request carries exactly one batch per partition")
    attributes = batch[FLAGS_AT]
    if attributes & TRANSACTIONAL:
        if request.transactional_id is None and request.forwarder is None:
            raise TransactionalIdRefused("a transactional batch without a transactional id")
        if request.acks != ACKS_ALL:
            raise InvalidRequiredAcks("transactions need acks=all")
    if version < _ZSTD_VERSION_MIN and attributes & CODEC_MASK == Codec.ZSTD:
        raise UnsupportedCompression("zstd needs Produce version 7 or newer")
    return batch


def _check_silence(produced: Produced) -> None:
    """acks=0 has no response: the only way to report a failure is to close the connection."""
    for _, results in produced:
        for result in results:
            if result.error_code:
                name = ErrorCode(result.error_code).name
                raise ProtocolViolation(f"a produce with acks=0 failed: {name}")
