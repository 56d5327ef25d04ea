"""A port that is not a broker's is named by what it speaks, at once."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.processes import PATIENCE_S, call_ottla, start_broker
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
    """A TLS server in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    loop.set_exception_handler(lambda loop, context: None)  # the handshake fails, as it must
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


@pytest.mark.usefixtures("no_timeout")
def test_a_port_of_tls_is_named(tls_address: str) -> None:
    said = said_of(tls_address)
    assert said.startswith(f"ottla: no broker can be reached ({tls_address}: ")
    assert f"; {tls_address} speaks TLS, which ottla does not: name a port without it" in said
