"""Scans segment files read-only: their batches, and problems in them and their indexes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from ottla.errors import ApiError
from ottla.model import Offset
from ottla.records.batch import HEADER_BYTES, MAGIC, BatchHeader, check_stored, read_header
from ottla.storage.checkpoints import CheckpointDamaged
from ottla.storage.index import AbortedDamaged, decode_aborted
from ottla.storage.seals import Seal
from ottla.storage.segment import ABORTED_INDEX, INDEX, LOG, SEAL, TIME_INDEX

_BUFFER_BYTES: Final = 1 << 20
_INDEX_ENTRY: Final = Struct(">ii")  # offset relative to the segment, position
_TIME_ENTRY: Final = Struct(">qi")  # timestamp, offset relative to the segment


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a file, at byte `position` if it has one."""

    file: Path
    what: str
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at byte {self.position}"
        return f"{self.file}{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """A batch of a segment file, complete but perhaps damaged."""

    position: int
    header: BatchHeader
    content: bytes


def find_segments(path: Path) -> list[Path]:
    """The segment files at or below `path`, ordered by offset."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob(f"*{LOG}") if file.stem.isdigit())


def scan(file: Path) -> Iterator[ScannedBatch | Problem]:
    """Every complete batch of a segment file; ends with a problem if other bytes follow."""
    with file.open("rb", buffering=_BUFFER_BYTES) as stream:
        position = 0
        while head := stream.read(HEADER_BYTES):
            if len(head) < HEADER_BYTES:
                yield Problem(file, f"{len(head)} bytes after the last batch", position)
                return
            header = read_header(head)
            if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
                yield Problem(file, "not a record batch", position)
                return
            content = head + stream.read(header.size_bytes - HEADER_BYTES)
            if len(content) < header.size_bytes:
                what = f"incomplete batch: {len(content)} of {header.size_bytes} bytes"
                yield Problem(file, what, position)
                return
            yield ScannedBatch(position, header, content)
            position += header.size_bytes


class SegmentCheck:
    """Checks one segment batch by batch, then its indexes; collects the problems.

    `floor` is the end offset of the segment before: no batch may begin below.
    """

    def __init__(self, file: Path, floor: Offset) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.batch_count = 0
        self.record_count = 0
        self.end_offset = floor
        self.size_bytes = 0
        self._base_offset = int(file.stem) if file.stem.isdigit() else 0
        self._offsets: dict[int, tuple[int, int]] = {}  # position -> first and last offset
        self._leader_epoch = -1

    def run(self) -> Iterator[int]:
        """Check everything; yields the number of bytes checked since the last yield."""
        for found in scan(self.file):
            if isinstance(found, Problem):
                self.problems.append(found)
            else:
                self._check_batch(found)
                yield found.header.size_bytes
        self._check_offset_index()
        self._check_time_index()
        self._check_aborted_index()

    def _check_batch(self, batch: ScannedBatch) -> None:
        header = batch.header
        try:
            check_stored(batch.content)
        except ApiError as problem:
            self._note_problem(str(problem), batch.position)
        floor = max(self.end_offset, self._base_offset)
        if header.base_offset < floor:
            what = f"the batch begins at offset {header.base_offset}, expected {floor} or more"
            self._note_problem(what, batch.position)
        if header.record_count < 0 or header.record_count > header.last_offset_delta + 1:
            self._note_problem("the batch has more records than offsets", batch.position)
        if header.leader_epoch < self._leader_epoch:
            self._note_problem(
                "the leader epoch is lower than that of the batch before", batch.position
            )
        self.batch_count += 1
        self.record_count += max(0, header.record_count)
        self.size_bytes = batch.position + header.size_bytes
        self.end_offset = max(self.end_offset, header.next_offset)
        self._leader_epoch = max(self._leader_epoch, header.leader_epoch)
        self._offsets[batch.position] = header.base_offset, header.last_offset

    def _check_offset_index(self) -> None:
        """Check that each entry points at a batch that does not begin after its offset."""
        file, data = self._index(INDEX, _INDEX_ENTRY)
        before = (-1, -1)
        for entry in _INDEX_ENTRY.iter_unpack(data):
            relative_offset, position = entry
            if relative_offset <= before[0] or position <= before[1]:
                self.problems.append(Problem(file, "the entries do not ascend"))
                return
            before = entry
            first, last = self._offsets.get(position, (0, -1))
            # Recovery may index a batch under the offset before it.
            if not first - 1 <= self._base_offset + relative_offset <= last:
                what = f"offset {self._base_offset + relative_offset} is not at byte {position}"
                self.problems.append(Problem(file, what))

    def _check_time_index(self) -> None:
        file, data = self._index(TIME_INDEX, _TIME_ENTRY)
        before = (-1, -1)
        for entry in _TIME_ENTRY.iter_unpack(data):
            if entry[0] <= before[0] or entry[1] < before[1]:
                self.problems.append(Problem(file, "the entries do not ascend"))
                return
            before = entry
        if before[1] >= 0 and self._base_offset + before[1] >= self.end_offset:
            self.problems.append(Problem(file, "it has offsets that the segment does not have"))

    def _check_aborted_index(self) -> None:
        """Check the aborted transactions; most segments have none and no file."""
        file = self.file.with_suffix(ABORTED_INDEX)
        content = file.read_bytes() if file.exists() else b""
        try:
            decode_aborted(content, Offset(self._base_offset), self._aborted_crc())
        except AbortedDamaged as problem:
            self.problems.append(Problem(file, str(problem)))

    def _aborted_crc(self) -> int | None:
        try:
            return Seal.decode(self.file.with_suffix(SEAL).read_bytes()).aborted_crc
        except (FileNotFoundError, CheckpointDamaged):
            return None

    def _index(self, suffix: str, entry: Struct) -> tuple[Path, bytes]:
        """The complete entries of an index file; a missing file is rebuilt, so it is no problem."""
        file = self.file.with_suffix(suffix)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return file, b""
        if len(data) % entry.size:
            self.problems.append(Problem(file, "it ends inside an entry"))
        # Apache Kafka preallocates its active index: zeros after the entries.
        used_bytes = len(data.rstrip(b"\0"))
        whole_count = min(-(-used_bytes // entry.size), len(data) // entry.size)
        return file, data[: whole_count * entry.size]

    def _note_problem(self, what: str, position: int) -> None:
        self.problems.append(Problem(self.file, what, position))
