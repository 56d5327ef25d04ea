"""Produce requests that wait until their transaction is verified (KIP-890).

Only the first batch of a transaction in a partition waits. Its request is kept as a whole, holds
back the requests behind it on its connection, and is then handled as if it had just arrived.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.pending import Pending, Response
from ottla.broker.transaction_versions import known_refusal, transaction_version
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.verification import (
    TransactionalWriter,
    Verification,
    Verifier,
    WrittenPartition,
    is_verified,
    verify_partitions,
)
from ottla.errors import ApiError, NotEnoughReplicas
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import ProduceRequest
from ottla.records.batch import FLAGS_AT, HEADER_BYTES, TRANSACTIONAL, read_producer
from ottla.replication.partition import PartitionForwarded
from ottla.replication.replicas import Replicas

if TYPE_CHECKING:
    from ottla.replication.forwarding import ForwardedPartition

Unverified = dict[ProducerIdentity, list[WrittenPartition]]
Retake = Callable[["Verifications"], Response]


class Verifications:
    """The verdicts on the partitions of one request, as errors of Produce."""

    def __init__(self, version: int, verdicts: list[Verification]) -> None:
        self._version = version
        self._verdicts = {verdict.partition: verdict for verdict in verdicts}

    def check(self, partition: WrittenPartition, batch: memoryview) -> None:
        """Refuse a write that the transaction must not have, right before the append.

        What was verified when the request came may have changed while it waited: the transaction
        has ended, or the partition is led in another epoch. Then the request has to be repeated.
        """
        if not batch[FLAGS_AT] & TRANSACTIONAL:
            return
        if partition not in self._verdicts:
            if not is_verified(partition, ProducerIdentity(*read_producer(batch))):
                raise NotEnoughReplicas("the transaction has to be verified again: try again")
            return
        try:
            self._verdicts[partition].check()
        except ApiError as refused:
            raise known_refusal(ApiKey.PRODUCE, self._version, refused) from None


class ProduceVerification:
    """Owner of the produce requests that wait for the transaction coordinator."""

    def __init__(
        self,
        replicas: Replicas,
        coordinator: Verifier,
        note_defect: Callable[[BaseException], None],
        route: "Callable[[TopicPartition], ForwardedPartition]",
    ) -> None:
        self._replicas = replicas
        self._route = route
        self._coordinator = coordinator
        self._note_defect = note_defect
        self._tasks: dict[asyncio.Task[None], None] = {}

    def hold(
        self, request: ProduceRequest, version: int, keep: Callable[[], Retake]
    ) -> Pending | None:
        """Verify the request's unverified partitions, then have the request handled.

        Returns None if there are none. `keep` copies the request.
        """
        assert request.transactional_id is not None
        unverified = self._unverified(request)
        if not unverified:
            return None
        pending = Pending(is_barrier=True)
        task = asyncio.get_running_loop().create_task(
            self._verify(request.transactional_id, version, unverified, keep(), pending)
        )
        self._tasks[task] = None
        task.add_done_callback(self._note_done)
        return pending

    def _unverified(self, request: ProduceRequest) -> Unverified:
        """Partitions by producer. Batches that are wrong are refused when they are appended."""
        unverified: Unverified = {}
        for key, batches in request.topics:
            for index, batch in batches:
                if batch is None or len(batch) < HEADER_BYTES:
                    continue
                if not batch[FLAGS_AT] & TRANSACTIONAL:
                    continue
                try:
                    partition = self._locate(key, index)
                except ApiError:
                    continue
                producer = ProducerIdentity(*read_producer(batch))
                if not is_verified(partition, producer):
                    unverified.setdefault(producer, []).append(partition)
        return unverified

    def _locate(self, key: TopicKey, index: int) -> WrittenPartition:
        try:
            return self._replicas.writable.locate(key, index)
        except PartitionForwarded as forwarded:
            return self._route(forwarded.tp)

    async def _verify(
        self,
        transactional_id: str,
        version: int,
        unverified: Unverified,
        retake: Retake,
        pending: Pending,
    ) -> None:
        protocol = transaction_version(ApiKey.PRODUCE, version)
        verdicts: list[Verification] = []
        for producer, partitions in unverified.items():
            writer = TransactionalWriter(transactional_id, producer, protocol)
            verdicts += await verify_partitions(self._coordinator, writer, partitions)
        response = retake(Verifications(version, verdicts))
        if isinstance(response, Pending):
            response.on_complete(lambda: pending.complete(response.parts or b""))
        else:
            assert response is not None, "a transactional produce has a response"
            pending.complete(response)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)
