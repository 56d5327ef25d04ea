"""Writing dead letters: for each share partition with dead records, one batch after the other.

A batch is written down in the state of the share partition before it is sent, and its records are
archived when it is durable. What cannot be written, because the topic is missing or the disk is
full, stays archiving and is tried again; other records and other partitions are not held up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.dead_letter_topics import DeadLetterTopic, DeadLetterTopics
from ottla.broker.share_reading import read_records
from ottla.clock import Clock
from ottla.errors import ApiError, InvalidProducerEpoch, OutOfOrderSequence
from ottla.model import Offset, ProducerEpoch, ProducerId
from ottla.model import Sequence as SequenceNumber
from ottla.queues.dead_letters import Origin, dead_letter
from ottla.queues.dead_records import DeadRecord
from ottla.queues.share_partition import SharePartition
from ottla.queues.share_state import Sender
from ottla.records.batch import Record, build_batch
from ottla.replication.waiting import wait_called

if TYPE_CHECKING:
    from ottla.broker.led_share_partition import LedSharePartition

log = logging.getLogger("ottla.broker")

_BATCH_RECORDS: Final = 100
_HEADERS_BYTES: Final = 2048  # that a dead letter has besides its record, about
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
# A partition forgets producers that were silent for ten minutes when it needs the room.
_SEARCH_AFTER_MS: Final = 300_000
_EPOCH: Final = ProducerEpoch(0)


class _Lost(Exception):
    """The share partition is not led here any more, or is being loaded again."""


class DeadLetters:
    """Owner of one task for each share partition that has dead records."""

    def __init__(
        self,
        topics: DeadLetterTopics,
        next_producer_id: Callable[[], Awaitable[ProducerId]],
        clock: Clock,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._topics = topics
        self._next_producer_id = next_producer_id
        self._clock = clock
        self._note_defect = note_defect
        self._tasks: dict[LedSharePartition, asyncio.Task[None]] = {}
        self.written_count = 0  # since the broker started
        self.failed_count = 0  # attempts to write a batch

    def begin(self, led: "LedSharePartition") -> None:
        """Write the dead letters of a share partition, unless that is under way."""
        state = led.state
        if state is None or not state.dead.count or led in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._write_all(led, state))
        self._tasks[led] = task
        task.add_done_callback(lambda done: self._note_ended(led, done))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _note_ended(self, led: "LedSharePartition", task: "asyncio.Task[None]") -> None:
        del self._tasks[led]
        if task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            self.begin(led)  # the state may have been loaded again meanwhile
        elif not isinstance(problem, _Lost):
            self._note_defect(problem)

    async def _write_all(self, led: "LedSharePartition", state: SharePartition) -> None:
        pause_s = _PAUSE_FIRST_S
        while state.dead.count:
            _check(led, state)
            try:
                if state.dead.is_sending or await self._begin_batch(led, state):
                    await self._send_batch(led, state)
                    pause_s = _PAUSE_FIRST_S
            except ApiError as problem:
                _check(led, state)
                self.failed_count += 1
                log.warning(
                    "dead letters not written",
                    extra={
                        "group": led.key.group_id,
                        "tp": led.partition.tp,
                        "topic": led.settings.config.dead_letter_topic,
                        "records": state.dead.count,
                        "reason": problem,
                    },
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    # A batch

    async def _begin_batch(self, led: "LedSharePartition", state: SharePartition) -> bool:
        """Choose the records of the next batch; False if there is none, True once it is written
        down."""
        name = led.settings.config.dead_letter_topic
        if not name:
            count = state.dead.drop()
            log.warning(
                "dead records archived without dead letters: the group has no topic for them",
                extra={"group": led.key.group_id, "tp": led.partition.tp, "records": count},
            )
            await self._persist(led, state)
            return False
        topic = self._topics.find(name)
        chosen = state.dead.next(_BATCH_RECORDS)
        offsets, gone = self._readable(led, chosen, topic)
        sender = await self._sender(state, topic, led.key.partition % topic.partition_count)
        _check(led, state)
        state.dead.drop(gone)
        if offsets:
            state.dead.begin(offsets, sender)
        await self._persist(led, state)
        return bool(offsets)

    def _readable(
        self, led: "LedSharePartition", chosen: Sequence[DeadRecord], topic: DeadLetterTopic
    ) -> tuple[list[Offset], list[Offset]]:
        """Offsets whose dead letters fit into one batch; and those that never had a record."""
        found = read_records(led.partition, [dead.offset for dead in chosen])
        start = led.partition.log.start_offset
        offsets: list[Offset] = []
        gone: list[Offset] = []
        size_bytes = 0
        for dead in chosen:
            record = found.get(dead.offset)
            if record is None and dead.offset >= start and dead.offset in found:
                gone.append(dead.offset)
                continue
            size_bytes += _HEADERS_BYTES + (0 if record is None else _size_bytes(record))
            if offsets and size_bytes > topic.batch_bytes_max:
                break
            offsets.append(dead.offset)
        return offsets, gone

    async def _sender(self, state: SharePartition, topic: DeadLetterTopic, index: int) -> Sender:
        """The producer of the next batch: another one for another destination."""
        now_ms = self._clock.now_ms()
        sender = state.dead.sender
        if sender is not None and (sender.topic_id, sender.partition) == (topic.topic_id, index):
            return sender._replace(begun_ms=now_ms)
        return Sender(await self._next_producer_id(), 0, topic.topic_id, index, now_ms)

    async def _send_batch(self, led: "LedSharePartition", state: SharePartition) -> None:
        sender = state.dead.sender
        assert sender is not None, "a batch was begun"
        if not self._topics.exists(sender.topic_id):
            state.dead.give_up()
            await self._persist(led, state)
            return
        age_ms = self._clock.now_ms() - sender.begun_ms
        if abs(age_ms) < _SEARCH_AFTER_MS or not await self._topics.has_batch(sender):
            _check(led, state)
            try:
                await self._append(led, state, sender)
            except (OutOfOrderSequence, InvalidProducerEpoch):
                # The destination has lost, or forgotten, what the producer wrote before.
                if not await self._topics.has_batch(sender):
                    await self._replace_sender(led, state, sender)
                    return
        _check(led, state)
        self.written_count += state.dead.end()
        await self._persist(led, state)
        led.wake()  # it may have been stopped by too many dead records

    async def _replace_sender(
        self, led: "LedSharePartition", state: SharePartition, sender: Sender
    ) -> None:
        producer_id = await self._next_producer_id()
        _check(led, state)
        state.dead.replace_sender(
            sender._replace(producer_id=producer_id, sequence=0, begun_ms=self._clock.now_ms())
        )
        await self._persist(led, state)

    async def _append(
        self, led: "LedSharePartition", state: SharePartition, sender: Sender
    ) -> None:
        sending = state.dead.sending()
        found = read_records(led.partition, [dead.offset for dead in sending])
        tp, now_ms = led.partition.tp, self._clock.now_ms()
        origin = Origin(led.key.group_id, tp.topic, tp.partition)
        bytes_max = self._topics.batch_bytes_max(sender)
        batch = bytearray()
        for copies in (led.settings.config.dead_letter_copies, False):
            written = [
                dead_letter(origin, dead, found.get(dead.offset), now_ms, copies=copies)
                for dead in sending
            ]
            batch = build_batch(
                written,
                producer_id=sender.producer_id,
                producer_epoch=_EPOCH,
                base_sequence=SequenceNumber(sender.sequence),
            )
            if len(batch) <= bytes_max:
                break  # else without copies: the records are too large for the topic
        await self._topics.append(sender, batch)

    async def _persist(self, led: "LedSharePartition", state: SharePartition) -> None:
        """Return when the changes of the state are durable."""
        _check(led, state)
        await wait_called(led.persist)
        _check(led, state)


def _check(led: "LedSharePartition", state: SharePartition) -> None:
    if led.state is not state:
        raise _Lost


def _size_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
