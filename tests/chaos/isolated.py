"""A client of one broker: it writes to what that broker leads, whatever others say."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from chaos.machine import Machine
from histories.history import History, Outcome, Sent, value_of
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import Record, pack, seal

_ALL: Final = -1
_PRODUCE_BY_NAME: Final = 12
_TIMEOUT_MS: Final = 1500
_PAUSE_S: Final = 0.1
_REFUSALS: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@contextmanager
def probing(
    machine: Machine, tps: Sequence[TopicPartition], history: History, name: str
) -> Iterator[None]:
    """Write to a broker with acks=all all the time, and note what it says."""
    is_over = threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_probe(machine, tps, history, name, is_over)), name=name
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


async def _probe(
    machine: Machine,
    tps: Sequence[TopicPartition],
    history: History,
    name: str,
    is_over: threading.Event,
) -> None:
    number = 0
    while not is_over.is_set():
        try:
            connection = await Connection.open(machine.endpoint, client_id=name, timeout_s=2.0)
            try:
                while tps and not is_over.is_set():
                    async with asyncio.TaskGroup() as writes:
                        for tp in tps:
                            number += 1
                            write = _write(connection, machine, tp, history, name, number)
                            writes.create_task(write)
                    await asyncio.sleep(_PAUSE_S)
            finally:
                connection.close()
        except* ClientError:
            pass
        await asyncio.sleep(_PAUSE_S)


async def _write(
    connection: Connection,
    machine: Machine,
    tp: TopicPartition,
    history: History,
    name: str,
    number: int,
) -> None:
    wall_ms = TimestampMs(time.time_ns() // 1_000_000)
    packed = pack([Record(timestamp_ms=wall_ms, value=value_of(name, number).encode())])
    data = PartitionProduceData(index=tp.partition, records=seal(packed))
    request = ProduceRequest(
        transactional_id=None,
        acks=_ALL,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
    )
    begun_s, outcome, offset = time.monotonic(), Outcome.UNKNOWN, None
    try:
        response = await connection.send(
            request, ProduceResponse, timeout_s=3.0, version_max=_PRODUCE_BY_NAME
        )
        result = response.responses[0].partition_responses[0]
        if result.error_code == ErrorCode.NONE:
            outcome, offset = Outcome.DONE, result.base_offset
        elif result.error_code in _REFUSALS:
            outcome = Outcome.REFUSED
    finally:
        ended_s = time.monotonic()
        history.sent.append(
            Sent(name, tp, number, outcome, offset, None, begun_s, ended_s, machine.number)
        )
