"""Ships the lines of log files into `logs.lines`, each line once.

The position in each file is in the compacted topic `logs.positions`, written in one transaction
with the lines: a shipper that is killed neither forgets a line nor sends it twice. Files are known
by their inode, so that a file that was renamed (`app.log` to `app.log.1`) is read to its end.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import confluent_kafka

from examples.news.topics import create, read_last

LINES: Final = "logs.lines"  # a line as it was written, by service
COUNTS: Final = "logs.counts"  # lines by window, service and level: the last count holds
POSITIONS: Final = "logs.positions"  # what is shipped of each file: the last one holds
READ_BYTES_MAX: Final = 1 << 20  # of a file in one transaction
LINE_BYTES_MAX: Final = 512 << 10  # what is longer is shipped in parts
_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file, and the position behind them."""

    lines: list[bytes]
    position: int


def create_topics(address: str) -> None:
    create(address, (LINES, COUNTS, POSITIONS), (COUNTS, POSITIONS))


def read_chunk(file: Path, position: int) -> Chunk:
    """The next whole lines of a file. A line without its end is left for the next time."""
    with file.open("rb") as content:
        size = content.seek(0, 2)
        if size < position:
            position = 0  # it was emptied and begins anew
        content.seek(position)
        read = content.read(READ_BYTES_MAX)
    end = read.rfind(b"\n") + 1
    if end == 0 and len(read) > LINE_BYTES_MAX:
        end = LINE_BYTES_MAX
    lines = [
        line[at : at + LINE_BYTES_MAX]
        for line in read[:end].splitlines()
        for at in range(0, len(line), LINE_BYTES_MAX)
    ]
    return Chunk(lines, position + end)


def service_of(file: Path) -> str:
    """`checkout` for checkout.log and checkout.log.1."""
    return file.name.partition(".log")[0]


class Shipper:
    """Owns the positions in all files of a directory. A new one fences the last."""

    def __init__(self, address: str, directory: Path) -> None:
        self._directory = directory
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": f"logs-shipper {directory.resolve()}",
            }
        )
        self._producer.init_transactions(_TIMEOUT_S)  # before reading: the last one's end is seen
        self._positions = {
            key: int(value["position"]) for key, value in read_last(address, POSITIONS).items()
        }

    def ship(self) -> int:
        """Ship the lines that are there and were not shipped before; the number of lines."""
        return sum(len(chunk.lines) for file in self._files() for chunk in self._ship_file(file))

    def _files(self) -> list[Path]:
        """The oldest first: of a file that was renamed the rest comes before its successor."""
        found = [file for file in self._directory.glob("*.log*") if file.is_file()]
        return sorted(found, key=lambda file: (service_of(file), file.stat().st_mtime_ns))

    def _ship_file(self, file: Path) -> Iterator[Chunk]:
        status = file.stat()
        key = f"{status.st_dev}:{status.st_ino}"
        while True:
            before = self._positions.get(key, 0)
            chunk = read_chunk(file, before)
            if chunk.position == before:
                return
            self._write(file, key, chunk)
            yield chunk

    def _write(self, file: Path, key: str, chunk: Chunk) -> None:
        self._producer.begin_transaction()
        for line in chunk.lines:
            self._producer.produce(LINES, line, service_of(file))
        position = {"file": str(file), "position": chunk.position}
        self._producer.produce(POSITIONS, json.dumps(position), key)
        self._producer.commit_transaction(_TIMEOUT_S)
        self._positions[key] = chunk.position


@dataclass(frozen=True, slots=True)
class Count:
    """Lines of one service and level in one window."""

    start: str
    service: str
    level: str
    lines: int


def read_counts(address: str) -> list[Count]:
    """The last counts, by window, service and level."""
    found = [
        Count(one["start"], one["service"], one["level"], one["lines"])
        for one in read_last(address, COUNTS).values()
    ]
    return sorted(found, key=lambda count: tuple(asdict(count).values()))
