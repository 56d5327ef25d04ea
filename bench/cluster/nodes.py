"""The contestants as clusters of three nodes: started, watched, killed one by one, stopped."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from bench import processes
from bench.load import LoadFailed
from bench.servers import (
    KAFKA_JARS,
    KAFKA_JVM,
    KAFKA_SHIPPED,
    Spawn,
    execute,
    format_kafka_storage,
    ottla_version,
    write_kafka_log_settings,
)
from bench.sockets import HOST

NODES: Final = 3
PARTITIONS: Final = 6
READY_S: Final = 120.0
ADMIN_S: Final = 10.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a cluster: for clients, for controllers, and for the store's two."""

    clients: tuple[int, ...]
    controllers: tuple[int, ...]
    store: tuple[int, int]

    @classmethod
    def choose(cls) -> "Ports":
        free = [processes.free_port() for _ in range(2 * NODES + 2)]
        return cls(tuple(free[:NODES]), tuple(free[NODES : 2 * NODES]), (free[-2], free[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterServer:
    """One contestant; `settings` are those of its topics. `missing` says why it is left out."""

    name: str
    title: str
    version: str
    durability: str
    node: Callable[[Path, Ports, int], Spawn]
    store: Callable[[Path, Ports], Spawn] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    missing: str = ""


class RunningCluster:
    """Owner of the processes of a cluster."""

    def __init__(self, server: ClusterServer, data: Path, log: BinaryIO) -> None:
        self.server = server
        self._data = data
        self._log = log
        self._ports = Ports.choose()
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._companions: list[subprocess.Popen[bytes]] = []
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in self._ports.clients)
        self._admin: AdminClient | None = None

    def start(self) -> None:
        if self.server.store is not None:
            self._companions.append(self._execute(self.server.store(self._data, self._ports)))
        for number in range(1, NODES + 1):
            self.start_node(number)

    def start_node(self, number: int) -> None:
        directory = self._data / f"node{number}"
        directory.mkdir(parents=True, exist_ok=True)
        spawn = self.server.node(directory, self._ports, number)
        self._nodes[number] = self._execute(spawn)

    def kill_node(self, number: int) -> None:
        """SIGKILL; on return the process is gone."""
        process = self._nodes.pop(number)
        process.kill()
        process.wait()

    def stop_node(self, number: int) -> None:
        processes.stop(self._nodes.pop(number))

    def stop(self) -> None:
        for process in (*self._nodes.values(), *self._companions):
            processes.stop(process)

    def cpu_s(self) -> float:
        return sum(processes.cpu_s(one.pid) for one in self._all())

    def rss_bytes(self) -> int:
        return sum(processes.rss_bytes(one.pid) for one in self._all())

    def _all(self) -> list["subprocess.Popen[bytes]"]:
        return [*self._nodes.values(), *self._companions]

    def _execute(self, spawn: Spawn) -> "subprocess.Popen[bytes]":
        return execute(spawn.command, spawn.environment, self._log)

    # Topics

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        """A topic with three replicas; tried again while brokers are still starting."""
        wanted = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=NODES,
            config={"min.insync.replicas": "2", **self.server.settings},
        )
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                self.admin.create_topics([wanted])[topic].result(ADMIN_S)
                return
            except (KafkaException, TimeoutError) as problem:
                if time.monotonic() > deadline_s:
                    raise LoadFailed(f"cannot create {topic}: {problem}") from None
                self._check_alive()
                time.sleep(POLL_S)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(ADMIN_S)

    def partitions(self, topic: str) -> list[PartitionMetadata]:
        found = self.admin.list_topics(topic, timeout=ADMIN_S).topics[topic].partitions
        return [found[index] for index in sorted(found)]

    def wait_in_sync(self, topic: str) -> None:
        """Return when every replica of the topic is in sync."""
        deadline_s = time.monotonic() + READY_S
        while not self._is_in_sync(topic):
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"{topic} is not in sync after {READY_S:.0f} s")
            time.sleep(POLL_S)

    def _is_in_sync(self, topic: str) -> bool:
        try:
            found = self.partitions(topic)
        except (KafkaException, KeyError):
            return False
        return bool(found) and all(len(one.isrs) == NODES and one.leader > 0 for one in found)

    def _check_alive(self) -> None:
        for number, process in self._nodes.items():
            if process.poll() is not None:
                raise LoadFailed(f"node {number} of {self.server.title} ended: see server.log")


@contextmanager
def cluster(server: ClusterServer, data: Path) -> Iterator[RunningCluster]:
    """A cluster whose processes are started by the caller and ended here, whatever happens."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / "server.log").open("ab") as log:
        running = RunningCluster(server, data, log)
        try:
            yield running
        finally:
            running.stop()


def contestants() -> dict[str, ClusterServer]:
    """All clusters that the bench knows, by name, present or not."""
    servers = [
        _ottla("ottla", "Ottla", "replicated", "acknowledged in the page caches of all in sync"),
        _ottla("ottla-fsync", "Ottla, fsync", "fsync", "acknowledged on the disks of all in sync"),
        _kafka(),
    ]
    return {server.name: server for server in servers}


def _ottla(name: str, title: str, durability: str, meaning: str) -> ClusterServer:
    """Brokers that share an etcd of one member, whose CPU and memory count as theirs."""
    program = Path(sys.executable).parent / "ottla"
    unpacked = Path(sys.prefix) / "etcd" / "usr" / "bin" / "etcd"  # by tools/setup.sh
    etcd = shutil.which("etcd") or (str(unpacked) if unpacked.exists() else None)

    def store(data: Path, ports: Ports) -> Spawn:
        client, peer = (f"http://{HOST}:{port}" for port in ports.store)
        assert etcd is not None
        where = ["--data-dir", str(data / "etcd"), "--name", "store"]
        where += ["--listen-client-urls", client, "--advertise-client-urls", client]
        where += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        return Spawn(command=[etcd, *where, "--initial-cluster", f"store={peer}"])

    def node(data: Path, ports: Ports, number: int) -> Spawn:
        command = [str(program), "serve", "--data", str(data), "--node-id", str(number)]
        command += ["--listen", f"{HOST}:{ports.clients[number - 1]}"]
        command += ["--store", f"etcd://{HOST}:{ports.store[0]}"]
        return Spawn(command=command, environment={"PYTHONDONTWRITEBYTECODE": ""})

    version = ottla_version(program)
    missing = "" if version else f"{title}: `{program} serve` does not run"
    return ClusterServer(
        name=name,
        title=title,
        version=version,
        durability=f"durability={durability}: {meaning}; one etcd beside them",
        node=node,
        store=store,
        settings={"durability": durability},
        missing=missing or ("" if etcd else f"{title}: no etcd (apt-get install etcd-server)"),
    )


def _kafka() -> ClusterServer:
    """Three Kafka nodes, each broker and controller in one, with its own defaults."""
    jars = sorted(KAFKA_JARS.glob("*.jar"))
    versions = [match[1] for jar in jars if (match := re.match(r"kafka_2\.13-(.+)\.jar", jar.name))]
    java = shutil.which("java")

    def node(data: Path, ports: Ports, number: int) -> Spawn:
        assert java is not None
        settings = _write_kafka_settings(data, ports, number)
        log_settings = write_kafka_log_settings(data)
        run = [java, *KAFKA_JVM, "-cp", f"{KAFKA_JARS}/*"]
        run += [f"-Dlog4j2.configurationFile={log_settings}"]
        if not (data / "data" / "meta.properties").exists():
            format_kafka_storage(run, settings)
        return Spawn(command=[*run, "kafka.Kafka", str(settings)])

    return ClusterServer(
        name="kafka",
        title="Kafka",
        version=versions[0] if versions else "",
        durability="its default: acknowledged in the page caches of all in sync, no fsync",
        node=node,
        missing="" if versions and java else "Kafka: no Java 17 or no jars (tools/setup_bench.sh)",
    )


def _write_kafka_settings(data: Path, ports: Ports, number: int) -> Path:
    """The shipped settings for a node that is broker and controller, with three replicas."""
    voters = ",".join(
        f"{node}@{HOST}:{port}" for node, port in enumerate(ports.controllers, start=1)
    )
    client, controller = ports.clients[number - 1], ports.controllers[number - 1]
    settings = data / "server.properties"
    settings.write_text(
        f"""\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://{HOST}:{client}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data / "data"}
{KAFKA_SHIPPED}"""
    )
    return settings
