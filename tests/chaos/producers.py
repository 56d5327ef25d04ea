"""Idempotent and transactional producers of confluent-kafka, and what they note."""

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chaos.clients import SETTINGS, TIMEOUT_S, Worker, error_of
from histories.history import History, Outcome, Sent, Transaction, value_of
from ottla.model import TopicPartition

_UNSETTLED_MAX: Final = 2_000
_TURN_S: Final = 0.02
_SETTLED_S: Final = 250.0
_FILLER: Final = b"." * 60
_TRANSACTION_MS: Final = 30_000
_ABORTED: Final = 0.15


class Writer(Worker):
    """Writes to all partitions at a steady rate. A fatal error of its producer ends the run."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        tps: Sequence[TopicPartition],
        rate: float,
        history: History,
        problems: list[str],
    ) -> None:
        super().__init__(name, problems)
        self._tps = list(tps)
        self._rate = rate
        self._history = history
        self._bootstrap = bootstrap
        self.acked_count = 0
        self.failed_count = 0
        self.acked_begun_s = dict.fromkeys(tps, 0.0)  # when the newest acknowledged one was sent
        self._number = 0

    def work(self) -> None:
        producer = Producer(
            {
                **SETTINGS,
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 240_000,
            }
        )
        try:
            self._write(producer)
        finally:
            if left := producer.flush(_SETTLED_S):
                self._problems.append(f"{self.name}: {left} records were never settled")

    def _write(self, producer: Producer) -> None:
        begun_s, sent_count = time.monotonic(), 0
        while not self.is_over.is_set():
            due = int((time.monotonic() - begun_s) * self._rate)
            if due - sent_count > self._rate:  # it stood still: go on, do not catch up
                begun_s, sent_count, due = time.monotonic(), 0, 0
            while sent_count < due and len(producer) < _UNSETTLED_MAX:
                self._send(producer)
                sent_count += 1
            producer.poll(_TURN_S)

    def _send(self, producer: Producer) -> None:
        tp = self._tps[self._number % len(self._tps)]
        name, number = self.name, self._number
        self._number += 1

        def note(error: KafkaError | None, message: Message) -> None:
            ended_s = time.monotonic()
            begun_s = ended_s - (message.latency() or 0.0)
            if error is not None:
                self.failed_count += 1
                self._history.sent.append(Sent(name, tp, number, Outcome.UNKNOWN))
                return
            self.acked_count += 1
            self.acked_begun_s[tp] = max(self.acked_begun_s[tp], begun_s)
            offset = _offset_of(message)
            self._history.sent.append(
                Sent(name, tp, number, Outcome.DONE, offset, None, begun_s, ended_s)
            )

        producer.produce(
            tp.topic,
            partition=tp.partition,
            key=_FILLER,
            value=value_of(name, number),
            on_delivery=note,
        )


class Transactor(Worker):
    """Writes in transactions, and aborts some of them."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        tps: Sequence[TopicPartition],
        rate: float,
        rng: Random,
        history: History,
        problems: list[str],
    ) -> None:
        super().__init__(name, problems)
        self._bootstrap = bootstrap
        self._tps = list(tps)
        self._pause_s = 1 / rate
        self._rng = rng
        self._history = history
        self._number = 0
        self._count = 0
        self.producer_count = 0
        self.committed_count = 0
        self.aborted_count = 0  # as it was meant
        self.failed_count = 0

    @property
    def ended_count(self) -> int:
        return self.committed_count + self.aborted_count

    def work(self) -> None:
        while not self.is_over.is_set():
            self.producer_count += 1
            producer = Producer(
                {
                    **SETTINGS,
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    "message.timeout.ms": _TRANSACTION_MS,
                    "linger.ms": 0,
                }
            )
            try:
                self._retry(lambda: producer.init_transactions(TIMEOUT_S))  # noqa: B023
                while not self.is_over.wait(self._rng.expovariate(1 / self._pause_s)):
                    self._transact(producer)
            except KafkaException:
                continue  # fenced, or it cannot go on: a new one ends what this one began

    def _transact(self, producer: Producer) -> None:
        self._count += 1
        id_, is_commit, outcome = f"{self.name}-{self._count}", True, Outcome.UNKNOWN
        notes: list[Sent] = []
        wanted = [
            (self._rng.choice(self._tps), self._next()) for _ in range(self._rng.randint(1, 4))
        ]
        is_meant = self._rng.random() >= _ABORTED
        try:
            producer.begin_transaction()
            for tp, number in wanted:
                self._send(producer, tp, number, id_, notes)
            producer.flush(TIMEOUT_S)
            is_commit = self._end(producer, is_meant)
            outcome = Outcome.DONE
            self._count_end(is_commit, is_meant)
        finally:
            noted = {one.number for one in notes}
            for tp, number in wanted:  # of those that were never settled
                if number not in noted:
                    notes.append(Sent(self.name, tp, number, Outcome.UNKNOWN, transaction=id_))
            self._history.sent.extend(notes)
            self._history.transactions.append(Transaction(id_, is_commit, outcome))

    def _count_end(self, is_commit: bool, is_meant: bool) -> None:
        if is_commit:
            self.committed_count += 1
        elif not is_meant:
            self.aborted_count += 1
        else:
            self.failed_count += 1

    def _end(self, producer: Producer, is_meant: bool) -> bool:
        """End a transaction; True if it is committed, False if aborted."""
        try:
            if is_meant:
                self._retry(lambda: producer.commit_transaction(TIMEOUT_S))
                return True
        except KafkaException as problem:
            if not error_of(problem).txn_requires_abort():
                raise
        self._retry(lambda: producer.abort_transaction(TIMEOUT_S))
        return False

    def _retry(self, call: Callable[[], object]) -> None:
        until_s = time.monotonic() + 4 * TIMEOUT_S
        while True:
            try:
                call()
            except KafkaException as problem:
                if not error_of(problem).retriable() or time.monotonic() > until_s:
                    raise
                self.is_over.wait(0.05)
            else:
                return

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _send(
        self, producer: Producer, tp: TopicPartition, number: int, id_: str, notes: list[Sent]
    ) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            is_done = error is None
            notes.append(
                Sent(
                    self.name,
                    tp,
                    number,
                    Outcome.DONE if is_done else Outcome.UNKNOWN,
                    _offset_of(message) if is_done else None,
                    transaction=id_,
                )
            )

        value = value_of(self.name, number)
        producer.produce(tp.topic, partition=tp.partition, value=value, on_delivery=note)


def _offset_of(message: Message) -> int | None:
    """The offset of an acknowledged record; None if an earlier attempt had written it.

    Its leader knows that it has the batch, and not where, once five others have followed.
    """
    offset = message.offset()
    return None if offset is None or offset < 0 else offset
