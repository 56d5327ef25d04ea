"""A schema registry by the REST contract of Confluent's: real HTTP on a port of its own, in memory.

PyPI has no registry that could be started here. This one checks no compatibility, and returns a
Protobuf schema as it was registered: as a FileDescriptorProto in base64.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

Response = tuple[int, dict[str, Any]]
_NO_SUBJECT: Response = (404, {"error_code": 40401, "message": "Subject not found"})
_NO_SCHEMA: Response = (404, {"error_code": 40403, "message": "Schema not found"})


class SchemaRegistry(ThreadingHTTPServer):
    """Schemas by id, and their ids by subject; counts the requests that it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = Lock()
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def respond(self, path: str, body: dict[str, Any] | None) -> Response:
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["subjects", subject, "versions"] if body is not None:
                return self._register(subject, body)
            case ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case ["schemas", "ids", number]:
                known = 0 < int(number) <= len(self.schemas)
                return (200, self.schemas[int(number) - 1]) if known else _NO_SCHEMA
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: dict[str, Any]) -> Response:
        names = ["schema", "schemaType", "references"]
        schema = {name: body[name] for name in names if name in body}
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)
        return 200, {"id": schema_id, "version": ids.index(schema_id) + 1, **schema}

    def _version(self, subject: str, version: str) -> Response:
        ids = self.subjects.get(subject)
        if not ids:
            return _NO_SUBJECT
        number = len(ids) if version == "latest" else int(version)
        schema_id = ids[number - 1]
        found = {"subject": subject, "version": number, "id": schema_id}
        return 200, found | self.schemas[schema_id - 1]


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: dict[str, Any] | None) -> None:
        path = urlsplit(self.path).path
        with self.server.lock:
            self.server.requests.append(path)
            status, found = self.server.respond(path, body)
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: tests have their own output."""


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        Thread(target=server.serve_forever, name="schema-registry", daemon=True).start()
        yield server
        server.shutdown()
