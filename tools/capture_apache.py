"""Record what Apache's own client and broker say to each other, and renew tests/golden with it.

    python -m compat.peers kafka            once, for the jars
    python -m tools.capture_apache

A proxy stands between clients and an Apache Kafka broker. Of the Java client's requests the largest
of each kind that is not too large is kept as tests/golden/java_<api>_v<version>.hex; of the
broker's answers, to the Java client and to those of tools/capture.py, the same in
tests/golden/answers/apache_<api>_v<version>.hex. All without their length.
"""

import asyncio
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from compat import java
from compat.apache import ApacheBroker, free_port
from compat.java import JavaScenarios
from ottla.protocol.api import APIS, ApiKey, parse_request_header
from tools.capture import CLIENTS, GOLDEN

ANSWERS: Final = GOLDEN / "answers"
FRAME_BYTES_MAX: Final = 6000
TIMEOUT_S: Final = 90
SCENARIOS: Final = (
    "acks_0",
    "acks_all",
    "without_idempotence",
    "records_keep_everything_with_codec_none",
    "null_and_empty_keys_values_and_headers",
    "seek_by_time",
    "pause_and_resume",
    "offsets_of_what_is_not_there",
    "create_and_describe_topics",
    "topics_that_cannot_be_created",
    "describe_topics_page_by_page",
    "delete_by_name",
    "delete_by_id",
    "create_partitions",
    "delete_records",
    "list_offsets_with_every_spec",
    "describe_a_topics_settings",
    "set_and_delete_a_setting",
    "settings_that_are_refused",
    "list_config_resources",
    "describe_cluster",
    "describe_log_dirs",
    "describe_producers",
    "describe_metadata_quorum",
    "describe_features",
    "members_come_and_go_range",
    "a_group_goes_on_where_it_committed_range",
    "offsets_of_groups_are_changed_range",
    "members_come_and_go_consumer",
    "transactions_are_whole_or_nothing",
    "offsets_move_with_their_transaction",
    "transactions_are_described_and_listed",
)
_TOOLS: Final = "org.apache.kafka.tools."
_READ: Final = ("--topic", "read", "--from-beginning", "--max-messages", "1", "--timeout-ms")


class Kept:
    """The largest frame of each kind that is not too large."""

    def __init__(self) -> None:
        self.requests: dict[str, bytes] = {}
        self.answers: dict[str, bytes] = {}

    def note(self, frames: dict[str, bytes], name: str, frame: bytes) -> None:
        if len(frames.get(name, b"")) < len(frame) <= FRAME_BYTES_MAX:
            frames[name] = frame


class Proxy:
    """Hands every frame on as it is, and keeps some."""

    def __init__(self, broker_address: str, kept: Kept) -> None:
        self._broker_address = broker_address
        self._kept = kept
        self.keeps_requests = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._broker_address.split(":")
        broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        asked: dict[int, str] = {}
        up = asyncio.create_task(self._pump_requests(reader, broker_writer, asked))
        down = asyncio.create_task(self._pump_answers(broker_reader, writer, asked))
        await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        for one in (writer, broker_writer):
            one.close()

    async def _pump_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, str],
    ) -> None:
        async for frame in frames_of(reader):
            if int.from_bytes(frame[:2], "big") in APIS:
                header, _ = parse_request_header(frame)
                name = f"{header.api_key.name.lower()}_v{header.api_version}"
                asked[header.correlation_id] = name
                if self.keeps_requests:
                    self._kept.note(self._kept.requests, name, frame)
            writer.write(len(frame).to_bytes(4, "big") + frame)
            await writer.drain()

    async def _pump_answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, str],
    ) -> None:
        async for frame in frames_of(reader):
            name = asked.pop(int.from_bytes(frame[:4], "big"), None)
            if name is not None and not is_fallback(name, frame):
                self._kept.note(self._kept.answers, name, frame)
            writer.write(len(frame).to_bytes(4, "big") + frame)
            await writer.drain()


def is_fallback(name: str, frame: bytes) -> bool:
    """An answer in version 0 to a version of ApiVersions that the broker does not know."""
    return name.startswith(ApiKey.API_VERSIONS.name.lower()) and frame[4:6] != bytes(2)


async def frames_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            yield await reader.readexactly(size)


@contextmanager
def proxying(port: int, broker_address: str, kept: Kept) -> Iterator[Proxy]:
    """A proxy on a thread of its own while clients run on this one."""
    proxy = Proxy(broker_address, kept)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = asyncio.start_server(proxy.serve, "127.0.0.1", port)
    asyncio.run_coroutine_threadsafe(serving, loop).result(TIMEOUT_S)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(cancel_others(), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


async def cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def run_java(address: str, directory: Path) -> None:
    """Scenarios of compat/java, then groups with Apache's own console tools."""
    scenarios = JavaScenarios(address, directory / "java.log")
    try:
        for name in SCENARIOS:
            problem = scenarios.play(name, lambda _: None)
            print(f"  {name}: {problem or 'ok'}")
    finally:
        scenarios.close()
    server = ("--bootstrap-server", address)
    tool("ConsoleProducer", *server, "--topic", "read", text="one\ntwo\nthree\n")
    for protocol in ("classic", "consumer"):
        group = ("--group", f"{protocol}-readers")
        property_of = ("--command-property", f"group.protocol={protocol}")
        consumer = "consumer.ConsoleConsumer"
        tool(consumer, *server, *group, *property_of, *_READ, "40000")
        for action in ("--list", "--describe", "--reset-offsets", "--delete"):
            more: tuple[str, ...] = group if action != "--list" else ()
            reset = ("--to-earliest", "--topic", "read", "--execute")
            more += reset if action == "--reset-offsets" else ()
            tool("consumer.group.ConsumerGroupCommand", *server, action, *more)


def tool(name: str, *arguments: str, text: str = "") -> None:
    command = java.command(_TOOLS + name, *arguments)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    print(f"  {name}: {done.returncode} {last[0][:100]}")


def write(directory: Path, prefix: str, frames: dict[str, bytes]) -> None:
    directory.mkdir(exist_ok=True)
    for old in directory.glob(f"{prefix}_*.hex"):
        old.unlink()
    for name, frame in frames.items():
        lines = textwrap.wrap(frame.hex(), 80)
        (directory / f"{prefix}_{name}.hex").write_text("\n".join(lines) + "\n")


def main() -> None:
    kept, port = Kept(), free_port()
    address = f"127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as scratch,
        ApacheBroker(Path(scratch) / "apache", advertised_port=port) as broker,
        proxying(port, broker.address, kept) as proxy,
    ):
        run_java(address, Path(scratch))
        proxy.keeps_requests = False
        for name, run in CLIENTS.items():
            print(f"  {name}")
            with suppress(Exception):  # what it asked until then counts
                run(address)
    write(GOLDEN, "java", kept.requests)
    write(ANSWERS, "apache", kept.answers)
    print(f"{len(kept.requests)} kinds of requests, {len(kept.answers)} kinds of answers")


if __name__ == "__main__":
    main()
