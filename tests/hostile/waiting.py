"""How long others wait while one client sends what it likes, and what that costs the broker."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from fakes import build
from hostile.attacked_broker import MIB, PATIENCE_S, AttackedBroker
from hostile.wire import create_topic, produce_request, raw_client, request_bytes
from ottla.model import TopicPartition

_PAUSE_S: Final = 0.002
_TOPIC: Final = "beside"


@dataclass(slots=True)
class Bystander:
    """A producer with acks=all that goes on writing; knows how long it waited at most.

    `worked_s` is how long the broker's loop worked meanwhile, at most: on a machine that others use
    as well, a client may wait for them and not for the broker. Its topic does not wait for the
    disk, which others keep busy too.
    """

    broker: AttackedBroker
    waited_s: float = 0.0
    worked_s: float = 0.0
    trips: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _began_s: float = 0.0
    _worked_before_s: float = 0.0
    _failure: Exception | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        create_topic(self.broker, _TOPIC, durability="replicated")
        self._thread = threading.Thread(target=self._run, name="bystander")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None:
            raise AssertionError("the bystander was not served") from self._failure

    def begin(self) -> None:
        """Forget how long was waited before."""
        self.waited_s = self.worked_s = 0.0

    @property
    def longest_s(self) -> float:
        """Including the request that is being waited for now."""
        return max(self.waited_s, time.perf_counter() - self._began_s if self._began_s else 0.0)

    @property
    def most_worked_s(self) -> float:
        """The same for the broker's work during one request."""
        now_s = self.broker.loop_cpu_s() if self._began_s else 0.0
        return max(self.worked_s, now_s - self._worked_before_s)

    def wait_trips(self, number: int, timeout_s: float) -> bool:
        """Whether it was served so many times more in time."""
        wanted, end_s = self.trips + number, time.perf_counter() + timeout_s
        while self.trips < wanted and time.perf_counter() < end_s and self._failure is None:
            time.sleep(0.005)
        return self.trips >= wanted

    def _run(self) -> None:
        try:
            batch = bytes(build.batch())
            frame = request_bytes(produce_request(TopicPartition(_TOPIC, 0), batch), 9)
            with raw_client(self.broker) as client:
                while not self._stopping.is_set():
                    self._worked_before_s = self.broker.loop_cpu_s()
                    self._began_s = time.perf_counter()
                    client.socket.sendall(frame)
                    answer = client.read_answer()
                    assert answer is not None, "the broker closed the bystander's connection"
                    self.waited_s = max(self.waited_s, time.perf_counter() - self._began_s)
                    self.worked_s = self.most_worked_s
                    self._began_s = 0.0
                    self.trips += 1
                    time.sleep(_PAUSE_S)
        except Exception as problem:  # noqa: BLE001  # raised again by `stop`
            self._failure = problem


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request did to the broker and to others."""

    name: str
    sent_bytes: int
    waited_s: float  # the longest produce of the bystander
    worked_s: float  # the most that the broker's loop did during one
    took_s: float
    grown_bytes: int
    answered_bytes: int
    end: str

    def __str__(self) -> str:
        return (
            f"{self.worked_s * 1000:6.0f} ms worked {self.waited_s * 1000:6.0f} ms waited"
            f" {self.took_s:6.2f} s"
            f" {self.grown_bytes / MIB:7.0f} MiB more {self.sent_bytes / MIB:7.2f} MiB sent"
            f" {self.answered_bytes / MIB:9.2f} MiB back  {self.end:9} {self.name}"
        )


def measure(
    broker: AttackedBroker,
    bystander: Bystander,
    name: str,
    frame: bytes,
    *,
    patience_s: float,
    stuck_s: float = PATIENCE_S,
    memory_bytes_max: int = 4 << 30,
) -> Cost:
    """Send one request beside the bystander and read what comes back, without keeping it.

    After `patience_s` without an answer the client leaves; the broker is stuck if the bystander is
    not served within `stuck_s`.
    """
    before = broker.rss_bytes()
    broker.forget_peak()
    bystander.begin()
    started_s = time.perf_counter()
    head, answered, end = b"", 0, "waits"
    with raw_client(broker) as client:
        client.socket.settimeout(0.1)
        sent = memoryview(frame)
        while time.perf_counter() - started_s < patience_s:
            if broker.rss_bytes() - before > memory_bytes_max:
                end = "memory"
                break
            try:
                if sent:
                    sent = sent[client.socket.send(sent[: 1 << 20]) :]
                    continue
                data = client.socket.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            if not data:
                end = "closed"
                break
            head = (head + data[:4])[:4]
            answered += len(data)
            if len(head) == 4 and answered == 4 + int.from_bytes(head, "big"):
                end = "answered"
                break
    took_s = time.perf_counter() - started_s
    if end != "memory" and not bystander.wait_trips(3, stuck_s):
        end = "stuck"
    grown = broker.peak_bytes() - before
    return Cost(
        name, len(frame), bystander.longest_s, bystander.most_worked_s, took_s, grown, answered, end
    )


@contextmanager
def bystander_of(broker: AttackedBroker) -> Iterator[Bystander]:
    """Somebody who produces beside whatever happens within."""
    bystander = Bystander(broker)
    bystander.start()
    try:
        yield bystander
    finally:
        bystander.stop()
