"""A machine: a broker, a member of etcd beside it, and the disk that both have, on one address."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.network import STORE_PORT, host_of, inside
from crash.mounts import Ext4
from crash.processes import COMMAND, BrokerProcess
from fakes.etcd_process import etcd_program
from ottla.model import Endpoint

_BROKER_PORT: Final = 9092
_DISK_BYTES: Final = 4 << 30  # a sparse file
_TIMEOUT_S: Final = 60
_ASK_S: Final = 2.0
_STORE_AWAY: Final = 2  # the exit status of a broker that cannot use its store
_SETTINGS: Final = (
    "--set=min.insync.replicas=2",
    "--set=offsets.topic.num.partitions=6",
    "--set=transaction.state.log.num.partitions=6",
    "--set=group.initial.rebalance.delay.ms=0",
    "--set=log.flush.offset.checkpoint.interval.ms=1000",
)


class StoreProcess:
    """A member of etcd, as `ottla store serve` runs it: every write is synced."""

    def __init__(self, machine: int, machines: Iterable[int], data: Path, log_file: Path) -> None:
        self._host = host_of(machine)
        members = ",".join(f"n{one}={host_of(one)}" for one in machines)
        self._command = [
            *(*inside(machine), *COMMAND, "store", "serve", "--etcd", etcd_program()),
            *("--name", f"n{machine}", "--members", members, "--data", str(data)),
        ]
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        assert self._process is None, "one process per member"
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_TIMEOUT_S)
            self._process = None

    @property
    def is_healthy(self) -> bool:
        return self._ask("GET", "/health").get("health") == "true"

    @property
    def is_leader(self) -> bool:
        status = self._ask("POST", "/v3/maintenance/status")
        return bool(status) and status.get("leader") == status["header"]["member_id"]

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._host, STORE_PORT, timeout=_ASK_S)
        try:
            connection.request(method, path, "{}" if method == "POST" else None)
            found = json.loads(connection.getresponse().read())
            return found if isinstance(found, dict) else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()


class Machine:
    """What runs on one address, and the disk below it, whose power can be cut."""

    def __init__(self, number: int, machines: Sequence[int], folder: Path, plant: str) -> None:
        self.number = number
        self.endpoint = Endpoint(host_of(number), _BROKER_PORT)
        self.disk = Ext4(folder / f"disk{number}.ext4", folder / f"disk{number}", _DISK_BYTES)
        self.disk.mount()
        store = ",".join(f"{host_of(one)}:{STORE_PORT}" for one in machines)
        self.broker = BrokerProcess(
            self.disk.path / "broker",
            *(f"--node-id={number}", f"--machine=machine{number}", f"--store=etcd://{store}"),
            *_SETTINGS,
            log_file=folder / f"broker{number}.log",
        )
        self.broker.address = str(self.endpoint)
        command = [sys.executable, "-m", "chaos.planted", plant] if plant else COMMAND
        self.broker.command = [*inside(number), *command]
        log_file = folder / f"store{number}.log"
        self.store = StoreProcess(number, machines, self.disk.path / "store", log_file)

    def start_broker(self) -> None:
        """Start the broker as a supervisor does: again, when it found no store to use.

        etcd may be without a leader for seconds after a fault.
        """
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            self.broker.spawn()
            try:
                return self.broker.wait_ready()
            except AssertionError:
                status = self.broker.wait_over()
                if status != _STORE_AWAY or time.monotonic() > until_s:
                    raise

    def pause(self, process: BrokerProcess | StoreProcess) -> Callable[[], None]:
        """Stop every thread of a process; returns what lets it go on."""
        process.signal(signal.SIGSTOP)
        return lambda: process.signal(signal.SIGCONT)

    def cut_power(self) -> None:
        """From here on nothing reaches the disk, and nothing runs."""
        self.disk.cut_power()
        self.broker.end()
        self.store.kill()
        self.disk.restore_power()

    def end(self) -> None:
        self.broker.end()
        self.store.kill()
        self.disk.unmount()
        os.sync()
