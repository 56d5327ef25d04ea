"""What is asked of a load, whatever the protocol, and the programs that generate it."""

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

NATIVE_SOURCES: Final = Path(__file__).parent / "native"
GRACE_S: Final = 60.0
UNLIMITED: Final = 1 << 40

Command = tuple[str | int | float, ...]


class LoadFailed(Exception):
    """A measurement that could not be taken; the message says why."""


class NotSupported(Exception):
    """The server has nothing that this row could measure: its cell stays empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Messages to move: at most `count` of them, for at most `seconds`."""

    size_bytes: int
    seconds: float
    count: int = UNLIMITED
    tuned: bool = False


@dataclass(frozen=True, slots=True)
class Throughput:
    """Messages acknowledged (or received) and how long that took."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """From the moment a message was due to the moment its consumer held it."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Transacted:
    """Transactions one after the other, and how long the commit at the end of each took."""

    transactions: Throughput
    commit: Latency


class Load(Protocol):
    """One protocol's client side, connected to one running server."""

    @property
    def tunable(self) -> bool:
        """Whether the client has settings to tune, and so a second profile."""

    def create(self, topic: str, *, fsync: bool = False) -> None:
        """A topic (or stream) with one partition and one copy; page cache unless `fsync`."""

    def delete(self, topic: str) -> None:
        """Give the disk space back."""

    def produce(self, topic: str, job: Job) -> Throughput:
        """As fast as one producer can, every message acknowledged."""

    def producing(self, topic: str, job: Job) -> AbstractContextManager[None]:
        """The same in the background, ended when the block ends."""

    def consume(self, topic: str, job: Job) -> Throughput:
        """As fast as one consumer can, from the beginning."""

    def latency(self, topic: str, rate: int, job: Job) -> Latency:
        """A steady `rate` a second from one producer to one consumer."""

    def request(self, topic: str, connections: int, job: Job) -> Throughput:
        """One message per request, one request in flight on each connection."""

    def transact(self, topic: str, records: int, job: Job) -> Transacted:
        """So many records in each transaction, one transaction after the other."""

    def connect(self) -> socket.socket:
        """A connection past its handshake, which then says nothing."""

    def first_ack(self, topic: str, deadline_s: float) -> None:
        """Return at the first acknowledged message, trying again quickly until then."""


@dataclass(frozen=True, slots=True)
class Generators:
    """The programs that make load: `rdkafka` and `share` for Kafka's protocol, `wire` and `queue`
    for raw sockets; `share` and `queue` are for work queues."""

    rdkafka: tuple[str, ...]
    share: tuple[str, ...]
    wire: tuple[str, ...]
    queue: tuple[str, ...]
    native: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """One inherited socket, what to send on it, and what to send when more may come."""

    connection: socket.socket
    unit: bytes
    more: bytes = b""

    def described(self) -> bytes:
        return b"".join(
            struct.pack("=i", part)
            if isinstance(part, int)
            else struct.pack("=I", len(part)) + part
            for part in (self.connection.fileno(), self.unit, self.more)
        )


def build_generators(target: Path) -> Generators:
    """Compile the C programs against the librdkafka inside the confluent-kafka wheel.

    Without a C compiler the same commands are answered, more slowly, by `bench.fallback`.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = _wheel_librdkafka()
    if compiler is None or library is None:
        slow = (sys.executable, "-m", "bench.fallback")
        return Generators(rdkafka=slow, share=slow, wire=slow, queue=slow, native=False)
    target.mkdir(parents=True, exist_ok=True)
    linked = (
        f"-L{library.parent}",
        f"-l:{library.name}",
        f"-Wl,-rpath,{library.parent.resolve()}",
    )
    return Generators(
        rdkafka=(str(_compile(compiler, "rdkafka", target, linked)),),
        share=(str(_compile(compiler, "share", target, linked)),),
        wire=(str(_compile(compiler, "wire", target, ())),),
        queue=(str(_compile(compiler, "queue", target, ())),),
        native=True,
    )


def _compile(compiler: str, name: str, target: Path, linked: Sequence[str]) -> Path:
    program = target / name
    source = NATIVE_SOURCES / f"{name}.c"
    command = [compiler, "-O2", str(source), "-o", str(program), *linked, "-lpthread"]
    subprocess.run(command, check=True)
    return program


def _wheel_librdkafka() -> Path | None:
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parents[1].glob("confluent_kafka.libs/librdkafka*"), None)


def run_generator(
    command: Command, *, seconds: float, wires: Sequence[Wire] = ()
) -> dict[str, float]:
    """Run a load program to its end and read its result."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            input=b"".join(wire.described() for wire in wires),
            pass_fds=[wire.connection.fileno() for wire in wires],
            capture_output=True,
            timeout=seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed("the load program did not end in time") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise LoadFailed(lines[-1] if lines else f"the load program ended with {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def throughput(result: dict[str, float]) -> Throughput:
    """A load program's result as a value."""
    if result["messages"] < 1 or result["seconds"] <= 0:
        raise LoadFailed("too little to measure")
    return Throughput(int(result["messages"]), result["seconds"])


def latency(result: dict[str, float]) -> Latency:
    """A load program's result as a value."""
    return Latency(result["p50_ms"], result["p99_ms"])


def transacted(result: dict[str, float]) -> Transacted:
    """A load program's result as a value."""
    return Transacted(throughput(result), latency(result))


@contextmanager
def running_generator(command: Command, *, wires: Sequence[Wire] = ()) -> Iterator[None]:
    """A load program in the background; it must still be running when the block ends."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[wire.connection.fileno() for wire in wires],
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"".join(wire.described() for wire in wires))
        process.stdin.close()
        yield
        if process.poll() is not None:
            raise LoadFailed("the bulk writer ended before the measurement did")
    finally:
        process.kill()
        process.wait()
