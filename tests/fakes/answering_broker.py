"""A broker that answers what a test tells it to, over a real socket."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from ottla.errors import ErrorCode
from ottla.model import Endpoint
from ottla.protocol.api import APIS, ApiKey, parse_request_header, response_frame
from ottla.protocol.codec import decode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Script = Callable[[Any], Any]  # a request's answer; None is silence, bytes are sent as they are


class AnsweringBroker:
    """Listens while it is entered. `asked` holds every request but ApiVersions, in order."""

    def __init__(self, scripts: dict[ApiKey, Script]) -> None:
        self.scripts = scripts
        self.versions = {api.key: api.versions for api in APIS.values()}
        self.asked: list[tuple[ApiKey, int, Any]] = []
        self.connection_count = 0
        self.endpoint = Endpoint("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._sessions: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.endpoint.port)
        self.endpoint = Endpoint(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await asyncio.gather(*self._sessions)
        await self._server.wait_closed()

    def hang_up(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def names_asked(self) -> list[str]:
        """The requests that came in, by name."""
        return [key.name for key, _, _ in self.asked]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.append(writer)
        session = asyncio.current_task()
        assert session is not None
        self._sessions.append(session)
        try:
            while True:
                size_bytes = int.from_bytes(await reader.readexactly(4), "big")
                self._answer(await reader.readexactly(size_bytes), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        header, position = parse_request_header(frame)
        versions = self.versions.get(header.api_key, range(0))
        if header.api_key is ApiKey.API_VERSIONS:
            answer: Any = self._api_versions()
            if header.api_version not in versions:
                answer.error_code = ErrorCode.UNSUPPORTED_VERSION
                # Apache's broker tells no more than this.
                answer.api_keys = [
                    item for item in answer.api_keys if item.api_key == ApiKey.API_VERSIONS
                ]
                header = header._replace(api_version=0)
        else:
            assert header.api_version in versions, header
            request = decode(
                APIS[header.api_key].request_class, header.api_version, frame, position
            )
            self.asked.append((header.api_key, header.api_version, request))
            answer = self.scripts[header.api_key](request)
        if isinstance(answer, bytes):
            writer.write(answer)
        elif answer is not None:
            writer.write(response_frame(header, answer))

    def _api_versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
                for key, versions in self.versions.items()
            ]
        )


class OneTopic:
    """Metadata of one topic whose partitions one broker leads."""

    def __init__(self, name: str, partition_count: int = 1) -> None:
        self.name = name
        self.partition_count = partition_count
        self.endpoint = Endpoint("127.0.0.1", 0)
        self.leader = 0

    def __call__(self, request: MetadataRequest) -> MetadataResponse:
        wanted = [self.name] if request.topics is None else [t.name for t in request.topics]
        broker = MetadataResponseBroker(node_id=0, host=self.endpoint.host, port=self.endpoint.port)
        return MetadataResponse(brokers=[broker], topics=[self._topic(name) for name in wanted])

    def _topic(self, name: str | None) -> MetadataResponseTopic:
        if name != self.name:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index, leader_id=self.leader, replica_nodes=[0], isr_nodes=[0]
                )
                for index in range(self.partition_count)
            ],
        )
