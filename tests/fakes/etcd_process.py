"""Real etcd servers on loopback, each a process of its own that tests may kill and start again."""

import asyncio
import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from crash.processes import free_port
from ottla.cluster.etcd_address import EtcdAddress
from ottla.model import Endpoint

PATIENCE_S: Final = 60.0
_SHOWN_CHARS: Final = 10_000
_LOOK_S: Final = 0.02


def etcd_program() -> str:
    """The etcd that is installed, or the one that tools/setup.sh unpacked; skips without one."""
    unpacked = Path(sys.prefix) / "etcd" / "usr" / "bin" / "etcd"
    found = shutil.which("etcd") or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        pytest.skip("etcd is not installed: it is in the Debian package etcd-server")
    return found


class EtcdProcess:
    """One member of a cluster, alone unless told otherwise."""

    def __init__(self, folder: Path, *arguments: str, name: str = "alone") -> None:
        self.name = name
        self.arguments = arguments
        self.endpoint = Endpoint("127.0.0.1", free_port())
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self.cluster: Sequence[EtcdProcess] = (self,)
        self.tls: ssl.SSLContext | None = None  # of its clients
        self.data = folder / name
        self._log_file = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, prefix: str) -> EtcdAddress:
        return EtcdAddress((self.endpoint,), f"{prefix}/", is_tls=self.tls is not None)

    def spawn(self) -> None:
        """Start the process, without waiting for it to be ready."""
        assert self._process is None, "one process per member"
        url = f"{'https' if self.tls else 'http'}://{self.endpoint}"
        command = [
            etcd_program(),
            *("--name", self.name, "--data-dir", str(self.data), "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", self.peer_url),
            *("--initial-advertise-peer-urls", self.peer_url),
            "--initial-cluster",
            ",".join(f"{member.name}={member.peer_url}" for member in self.cluster),
            *self.arguments,
        ]
        # Every option can also be set in the environment.
        environment = {name: text for name, text in os.environ.items() if name[:5] != "ETCD_"}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def wait_ready(self) -> None:
        """Wait until the member serves, which it does when its cluster has a leader."""
        asyncio.run(self._wait_ready())

    async def _wait_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(self._is_ready):
                assert self._process is not None
                assert self._process.poll() is None, self.said()
                await asyncio.sleep(_LOOK_S)

    def _is_ready(self) -> bool:
        try:
            return bool(self.request("GET", "/health").get("health") == "true")
        except (OSError, http.client.HTTPException):
            return False

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def pause(self) -> None:
        """Stop every thread of the process, until `resume`; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = None

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process is not None:
            self.kill()

    def said(self) -> str:
        return self._log_file.read_text()[-_SHOWN_CHARS:] if self._log_file.exists() else ""

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON that the server responds with; not through our own client."""
        host, port = self.endpoint
        connection = (
            http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=self.tls)
            if self.tls
            else http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        )
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, dict(headers or {}))
            response = connection.getresponse()
            return json.loads(response.read())
        finally:
            connection.close()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await asyncio.to_thread(self.request, "POST", path, body)

    async def put(self, key: str, value: bytes = b"") -> None:
        """Write a key, which is not below any prefix."""
        await self.post("/v3/kv/put", {"key": base64_of(key.encode()), "value": base64_of(value)})

    async def keys(self) -> list[str]:
        """Every key that the server has."""
        found = await self.post("/v3/kv/range", {"key": "AA==", "range_end": "AA=="})
        return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]

    async def compact(self) -> None:
        """Forget everything that is older than now."""
        now = (await self.post("/v3/kv/range", {"key": "AA=="}))["header"]["revision"]
        await self.post("/v3/kv/compaction", {"revision": now, "physical": True})


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def three_members(folder: Path) -> list[EtcdProcess]:
    """The members of one cluster, not started yet."""
    members = [EtcdProcess(folder, name=name) for name in ("first", "second", "third")]
    for member in members:
        member.cluster = members
    return members


@contextmanager
def running(*members: EtcdProcess) -> Iterator[None]:
    """Servers that are gone when the test is over, whatever became of them meanwhile."""
    try:
        for member in members:
            member.spawn()
        for member in members:
            member.wait_ready()
        yield
    except BaseException:
        for member in members:
            sys.stdout.write(member.said())  # pytest shows it beside what failed
        raise
    finally:
        for member in members:
            member.end()
