"""Apache Kafka itself: one broker of it, and its dump tool."""

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from compat import java

_READY_S: Final = 90.0
_STOP_S: Final = 60.0
_LOOK_S: Final = 0.05
_CLUSTER_ID: Final = "b3R0bGEtY29tcGF0LTAwMQ"
LOG_SETTINGS: Final = """\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""


class ApacheBroker:
    """One node, broker and controller in one; keeps its port and directory through restarts.

    Clients are told to come to `advertised_port`, if somebody listens there in between.
    """

    def __init__(self, directory: Path, advertised_port: int | None = None) -> None:
        directory.mkdir(parents=True)
        self.data = directory / "data"
        self._port, controller_port = free_port(), free_port()
        self._log = directory / "server.log"
        self._settings = directory / "server.properties"
        advertised_port = advertised_port or self._port
        self._settings.write_text(
            _settings(self.data, self._port, controller_port, advertised_port)
        )
        self._log_settings = directory / "log4j2.properties"
        self._log_settings.write_text(LOG_SETTINGS)
        self._process: subprocess.Popen[bytes] | None = None
        # With eligible leader replicas the cluster itself sets min.insync.replicas for every topic.
        plain = ("--feature", "eligible.leader.replicas.version=0")
        target = ("-t", _CLUSTER_ID, "-c", str(self._settings), *plain)
        self._run("kafka.tools.StorageTool", "format", *target)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, no process is left behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._settings)), stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + _READY_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, "Apache Kafka does not answer"
            time.sleep(_LOOK_S)

    def end(self, signum: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        try:
            self._process.wait(_STOP_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._log_settings}"
        return java.command(main_class, *arguments, heap_mb=512, more=logging)

    def _run(self, main_class: str, *arguments: str) -> None:
        subprocess.run(
            self._command(main_class, *arguments), check=True, capture_output=True, timeout=60
        )


def _settings(data: Path, port: int, controller_port: int, advertised_port: int) -> str:
    """Kafka's defaults, on loopback; deleted topics leave at once, so that they can be remade."""
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port}
controller.listener.names=CONTROLLER
log.dirs={data}
log.segment.delete.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def dump(*files: Path, options: tuple[str, ...] = ()) -> str:
    """What Apache's DumpLogSegments prints of these files."""
    tool = java.command(
        "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options
    )
    done = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
