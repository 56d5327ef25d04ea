"""kcat: the command line over librdkafka, here as Debian builds it (an older librdkafka)."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from compat.adapter import PATIENCE_S, Client, Received, Refused, Sent, Start

MISSING: Final = "kcat is not installed: it is in the Debian package kcat"

_KEY_DELIMITER: Final = b"\x1f"
_RECORD_DELIMITER: Final = b"\x1e"


def is_installed() -> bool:
    return shutil.which("kcat") is not None


class KcatClient(Client):
    name = "kcat"
    tells_offsets = False

    def can_send(self, record: Sent) -> bool:
        return record.key is not None or bool(record.value)

    @contextmanager
    def producer(
        self, *, acks: int = -1, codec: str = "none", idempotent: bool = False
    ) -> Iterator["_Producer"]:
        options = [f"-Xacks={acks}", "-Xmessage.max.bytes=67108864"]
        options += [f"-Xcompression.codec={codec}"]
        options += ["-Xenable.idempotence=true"] if idempotent else []
        yield _Producer(self.address, options)

    @contextmanager
    def consumer(
        self,
        topic: str,
        starts: Mapping[int, Start],
        *,
        reset: str = "error",
        read_committed: bool = False,
        wait_ms: int = 500,
    ) -> Iterator["_Consumer"]:
        """Several partitions must be all that the topic has, and begin at the same place."""
        (start,) = set(starts.values())
        place = [f"-p{partition}" for partition in starts] if len(starts) == 1 else []
        isolation = "read_committed" if read_committed else "read_uncommitted"
        command = ["kcat", "-C", "-J", "-u", "-b", self.address, "-t", topic, *place, f"-o{start}"]
        command += [f"-Xtopic.auto.offset.reset={reset}", f"-Xisolation.level={isolation}"]
        command += [f"-Xfetch.wait.max.ms={wait_ms}", "-Xreconnect.backoff.max.ms=200"]
        if wait_ms > 30_000:
            command += [f"-Xsocket.timeout.ms={min(wait_ms + 1000, 300_000)}"]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
            try:
                yield _Consumer(process, errors)
            finally:
                process.kill()
                process.communicate()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        said = run_kcat("-Q", "-b", self.address, "-t", f"{topic}:{partition}:{timestamp_ms}")
        found = re.fullmatch(rf"{re.escape(topic)} \[{partition}\] offset (-?\d+)", said.strip())
        assert found is not None, said
        return None if found[1] == "-1" else int(found[1])


def run_kcat(*arguments: str, stdin: bytes = b"") -> str:
    """Run kcat to its end; what it printed, or Refused."""
    done = subprocess.run(
        ["kcat", *arguments], input=stdin, capture_output=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise _refusal(done.stderr.decode(errors="replace"))
    return done.stdout.decode()


_TEXTS: Final = {
    "Message size too large": 10,
    "Unknown topic or partition": 3,
    "Unknown partition": 3,
    "Unknown topic": 3,
    "Offset out of range": 1,
    "no previously committed offset": 1,
}


def _refusal(text: str) -> Refused:
    """kcat prints librdkafka's words only."""
    return Refused(next((code for words, code in _TEXTS.items() if words in text), -1), text)


class _Producer:
    """One process for each run of records that can share its options."""

    def __init__(self, address: str, options: Sequence[str]) -> None:
        self._address = address
        self._options = options

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        for options, group in groupby(records, _kcat_options):
            self._send(topic, options, list(group))
        return []

    def _send(self, topic: str, options: Sequence[str], group: Sequence[Sent]) -> None:
        assert all(record.timestamp_ms is None for record in group), "kcat stamps its own time"
        lines = _RECORD_DELIMITER.join(
            (b"" if record.key is None else record.key + _KEY_DELIMITER) + (record.value or b"")
            for record in group
        )
        command = ["-P", "-b", self._address, "-t", topic, *self._options, *options]
        if len(group) == 1 and group[0].key is None:
            with tempfile.TemporaryDirectory() as directory:
                message = Path(directory) / "message"
                message.write_bytes(lines)
                run_kcat(*command, str(message))
        else:
            run_kcat(*command, "-D\\x1e", stdin=lines)


def _kcat_options(record: Sent) -> tuple[str, ...]:
    options = [] if record.partition is None else [f"-p{record.partition}"]
    if record.key is not None:
        options.append("-K\\x1f")
    if record.value is None:
        options.append("-Z")
    for name, content in record.headers:
        options += ["-H", name if content is None else f"{name}={content.decode()}"]
    return tuple(options)


class _Consumer:
    def __init__(self, process: "subprocess.Popen[bytes]", errors: Any) -> None:
        self._process = process
        self._errors = errors

    def take(self, count: int) -> list[Received]:
        return [self._next() for _ in range(count)]

    def _next(self) -> Received:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(PATIENCE_S)
            self._errors.seek(0)
            raise _refusal(self._errors.read().decode(errors="replace"))
        return _received(json.loads(line))


def _received(message: dict[str, Any]) -> Received:
    flat = message.get("headers", [])
    return Received(
        partition=message["partition"],
        offset=message["offset"],
        timestamp_ms=message["ts"],
        is_log_append_time=message["tstype"] == "logappend",
        key=_encoded(message["key"]),
        value=_encoded(message["payload"]),
        headers=tuple(
            (name, _encoded(content)) for name, content in zip(flat[::2], flat[1::2], strict=True)
        ),
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
