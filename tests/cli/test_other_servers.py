"""A port that is not a broker's is named by what it speaks, at once."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.processes import PATIENCE_S, call_ottla, start_broker, wait_until
from crash.processes import free_port
from ottla.client import connection


class Page(BaseHTTPRequestHandler):
    """An HTTP server that waits for the end of a line, as most do."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(params=["HTTP/0.9", "HTTP/1.1"])
def http_address(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Versioned", (Page,), {"default_request_version": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(PATIENCE_S)


def said_of(address: str) -> str:
    done = call_ottla("topic", "list", "--broker", address)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.fixture
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits longer than any test: what it learns, it learns at once."""
    monkeypatch.setattr("ottla.client.client.CONNECT_TIMEOUT_S", 10 * PATIENCE_S)
    assert connection.CONNECT_TIMEOUT_S < PATIENCE_S


@pytest.mark.usefixtures("no_timeout")
def test_a_web_server_is_named(http_address: str) -> None:
    expected = (
        f"ottla: no broker can be reached ({http_address}: it speaks HTTP, not Kafka's protocol)"
    )
    assert said_of(http_address).startswith(expected)


@pytest.mark.usefixtures("no_timeout")
def test_the_metrics_page_of_a_broker_is_named(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = start_broker(tmp_path / "data", "--metrics", address)
    assert f"({address}: it speaks HTTP, not Kafka's protocol)" in said_of(address)
    assert broker.stop() == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: it is in the Debian package openssl")
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = directory / "key.pem", directory / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


@pytest.fixture
def tls_address(certificate: Path) -> Iterator[str]:
    """A TLS server in a process of its own."""
    address = f"127.0.0.1:{free_port()}"
    command = ["openssl", "s_server", "-quiet", "-accept", address, "-cert", str(certificate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        wait_until(lambda: is_listening(address), "openssl listens")
        yield address
        server.kill()


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.usefixtures("no_timeout")
def test_a_port_of_tls_is_named(tls_address: str) -> None:
    said = said_of(tls_address)
    assert said.startswith(f"ottla: no broker can be reached ({tls_address}: ")
    assert f"; {tls_address} speaks TLS, which ottla does not: name a port without it" in said
