"""Produce requests that wait until their transaction may write to their partitions.

Only the first batch of a transaction in a partition waits. Its request is kept as a whole, holds
back what is behind it on its connection, and is then taken as if it had just come.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final

from ottla.broker.admission import Admitted, Writer, admit
from ottla.broker.pending import Answer, Pending
from ottla.broker.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.log_entries import ProducerIdentity
from ottla.coordinator.transactions import BUMPING_VERSION
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
)
from ottla.model import ProducerEpoch, ProducerId
from ottla.protocol.hot_produce import ProduceRequest
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas

_ADDING_FROM: Final = 12  # Produce of transaction version 2
_ABORTABLE_FROM: Final = 11
_TRANSACTIONAL: Final = 0x10
_ATTRIBUTES_LOW_AT: Final = 22
_PRODUCER_AT: Final = 43
_PRODUCER: Final = Struct(">qh")
_BATCH_BYTES_MIN: Final = 61

Wanted = dict[ProducerIdentity, list[LeaderPartition]]
Retake = Callable[["Admission"], Answer]


class Admission:
    """What was said about the partitions of one request, in Produce's words."""

    def __init__(self, version: int, said: list[Admitted]) -> None:
        self._version = version
        self._said = {admitted.partition: admitted for admitted in said}

    def check(self, partition: LeaderPartition) -> None:
        """Refuse what may not be written, right before it would be."""
        if partition not in self._said:
            return
        try:
            self._said[partition].check()
        except ApiError as refused:
            raise _refusal(refused, self._version) from None


class HeldProduces:
    """Owner of the requests that wait for a coordinator's word."""

    def __init__(
        self,
        replicas: Replicas,
        coordinator: TransactionCoordinator,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._replicas = replicas
        self._coordinator = coordinator
        self._note_defect = note_defect
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(
        self, request: ProduceRequest, version: int, keep: Callable[[], Retake]
    ) -> Pending | None:
        """Ask for the partitions that do not know the transaction, then have the request taken
        again; None when all of them do. `keep` copies the request."""
        assert request.transactional_id is not None
        wanted = self._unadmitted(request)
        if not wanted:
            return None
        pending = Pending(is_barrier=True)
        task = asyncio.get_running_loop().create_task(
            self._ask(request.transactional_id, version, wanted, keep(), pending)
        )
        self._tasks.add(task)
        task.add_done_callback(self._note_over)
        return pending

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _unadmitted(self, request: ProduceRequest) -> Wanted:
        """By who wants to write. What is wrong with a batch is said when it is appended."""
        wanted: Wanted = {}
        for key, batches in request.topics:
            for index, batch in batches:
                if batch is None or len(batch) < _BATCH_BYTES_MIN:
                    continue
                if not batch[_ATTRIBUTES_LOW_AT] & _TRANSACTIONAL:
                    continue
                try:
                    partition = self._replicas.locate(key, index)
                except ApiError:
                    continue
                producer_id, epoch = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
                known = partition.log.producers.get(producer_id)
                if known is None or not known.has_open(epoch):
                    producer = ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))
                    wanted.setdefault(producer, []).append(partition)
        return wanted

    async def _ask(
        self,
        transactional_id: str,
        version: int,
        wanted: Wanted,
        retake: Retake,
        pending: Pending,
    ) -> None:
        transaction_version = BUMPING_VERSION if version >= _ADDING_FROM else 0
        said: list[Admitted] = []
        for producer, partitions in wanted.items():
            writer = Writer(transactional_id, producer, transaction_version)
            said += await admit(self._coordinator, writer, partitions)
        answer = retake(Admission(version, said))
        if isinstance(answer, Pending):
            answer.on_complete(lambda: pending.complete(answer.parts or b""))
        else:
            assert answer is not None, "a transactional produce is answered"
            pending.complete(answer)

    def _note_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)


def _refusal(refused: ApiError, version: int) -> ApiError:
    """Words that make a producer of any age do the right thing."""
    match refused:
        case ProducerFenced():
            return InvalidProducerEpoch(str(refused))
        case InvalidProducerIdMapping():
            return refused
        case TransactionAbortable():
            return refused if version >= _ABORTABLE_FROM else InvalidTxnState(str(refused))
        case ConcurrentTransactions() if version >= _ADDING_FROM:
            return refused
        case _:
            return NotEnoughReplicas(str(refused))  # for a moment: it will be sent again
