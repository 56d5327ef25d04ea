"""Segments, the files of a log: the active one, which grows, and the sealed ones before it."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from ottla.config import INT64_MAX
from ottla.errors import CorruptBatch
from ottla.model import NO_TIMESTAMP, Offset, Position, TimestampMs
from ottla.records.batch import (
    HEADER_BOUNDS,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    read_header,
)
from ottla.storage.files import File, Files, StrPath
from ottla.storage.index import (
    AbortedTransaction,
    IndexDamaged,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
)
from ottla.storage.names import TEMPORARY

WALK_BYTES: Final = 8 << 10  # how much is read at a time to look for headers

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
SEAL: Final = ".seal"  # says that a segment was whole and on disk, see `seals`
SNAPSHOT: Final = ".snapshot"
SIDE_SUFFIXES: Final = (SEAL, INDEX, TIME_INDEX, ABORTED_INDEX)  # what lies beside a log file
SEGMENT_SUFFIXES: Final = (*SIDE_SUFFIXES, LOG)  # in the order in which a segment's files go
CLEANED: Final = ".cleaned"  # written by compaction, and nothing else so far
SWAP: Final = ".swap"  # whole, on disk, and about to replace what it was made from
DELETED: Final = ".deleted"  # no longer of the log, and about to be removed


def file_name(offset: Offset, suffix: str) -> str:
    """The name of a file of the segment that begins at `offset`, as Kafka has it."""
    return f"{offset:020d}{suffix}"


def file_path(directory: StrPath, offset: Offset, suffix: str) -> str:
    """`file_name` with its directory."""
    return f"{directory}/{offset:020d}{suffix}"


class FoundBatch(NamedTuple):
    """The position, offsets and size of a batch in its segment."""

    position: Position
    base_offset: Offset
    last_offset: Offset
    size_bytes: int


class WrittenBatch(NamedTuple):
    """The size, last offset and largest timestamp of a batch that is written."""

    size_bytes: int
    last_offset: Offset
    max_timestamp_ms: int


class Indexes:
    """The indexes of one segment, which grow batch by batch."""

    __slots__ = ("aborted", "by_offset", "by_time", "max_timestamp_at", "max_timestamp_ms", "rest")

    def __init__(self) -> None:
        self.by_offset = OffsetIndex()
        self.by_time = TimeIndex()
        self.aborted: list[AbortedTransaction] = []
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_at = -1  # relative last offset of the batch that has it
        self.rest = 0  # bytes since the last entry

    def note(
        self,
        position: int,
        size_bytes: int,
        last_offset: int,  # relative to the segment
        max_timestamp_ms: int,
        interval_bytes: int,
    ) -> None:
        """A batch has been appended at `position`."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = TimestampMs(max_timestamp_ms)
            self.max_timestamp_at = last_offset
        if self.rest > interval_bytes:
            self.by_offset.append(last_offset, Position(position))
            self.by_time.append(self.max_timestamp_ms, self.max_timestamp_at)
            self.rest = 0
        self.rest += size_bytes

    def finish(self) -> None:
        """Add the last entry of the time index: the segment's largest timestamp."""
        if self.max_timestamp_ms >= 0:
            self.by_time.append(self.max_timestamp_ms, self.max_timestamp_at)

    def truncate(self, position: Position, last_offset: int) -> None:
        """Forget everything behind the entry at `position`, whose batch ends with `last_offset`.

        The batches from that entry on are noted again as they are read again.
        """
        self.by_offset.truncate(position + 1)
        self.by_time.truncate(last_offset + 1)
        self.max_timestamp_ms, self.max_timestamp_at = self.by_time.last()
        self.rest = 0


class CheckedPart(NamedTuple):
    """Bytes of a segment that hold intact batches, and the offset behind the last of them."""

    start: Position
    end: Position
    end_offset: Offset


class Unchecked:
    """The bytes that a start has found in a segment, and which of them are known to be intact.

    `end` is where those bytes end: what lies behind has been written, or checked, since the start.
    """

    __slots__ = ("_parts", "end")

    def __init__(self, end: int) -> None:
        self.end = end
        self._parts: list[CheckedPart] = []  # in order, apart from each other

    def part_at(self, position: int) -> CheckedPart | None:
        """The checked part that holds the batch at `position`, or ends there."""
        at = bisect_right(self._parts, position, key=attrgetter("start")) - 1
        return self._parts[at] if at >= 0 and position <= self._parts[at].end else None

    def note(self, part: CheckedPart) -> None:
        """Note that these bytes are intact. When all are, nothing has to be looked up any more."""
        first = bisect_left(self._parts, part.start, key=attrgetter("end"))
        last = bisect_right(self._parts, part.end, key=attrgetter("start"))
        touched = [part, *self._parts[first:last]]
        start = min(one.start for one in touched)
        longest = max(touched, key=attrgetter("end"))
        self._parts[first:last] = [CheckedPart(start, longest.end, longest.end_offset)]
        if not start and longest.end >= self.end:
            self.end = 0
            self._parts.clear()


class ActiveSegment:
    """The segment that is being written. Owned by one log."""

    __slots__ = (
        "_file",
        "base_offset",
        "directory",
        "end_offset",
        "indexes",
        "opened_ms",
        "reopen",
        "size_bytes",
        "unchecked",
    )

    reopen: Callable[[], File]  # set by the owner of the segment

    def __init__(
        self, directory: Path, base_offset: Offset, file: File | None, opened_ms: TimestampMs
    ) -> None:
        """Without a `file` it is opened when it is first used."""
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self._file = file
        self.indexes = Indexes()
        self.opened_ms = opened_ms  # when it was begun as far as is known, less its jitter
        self.unchecked = Unchecked(0)

    @property
    def file(self) -> File:
        """The file; one that was released is opened."""
        if self._file is None:
            self._file = self.reopen()
        return self._file

    def release(self) -> None:
        """Close the file until it is used again; readers that hold it can finish."""
        self._file = None

    def take_file(self) -> list[File]:
        """The file, if it is open; from now on it is not."""
        taken, self._file = self._file, None
        return [] if taken is None else [taken]

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        last_offset: int,
        max_timestamp_ms: int,
        interval_bytes: int,
    ) -> None:
        """Write one batch to the page cache. If that fails nothing is noted."""
        (self._file or self.file).append(batch)
        size_bytes = len(batch)
        position = self.size_bytes
        relative_offset = last_offset - self.base_offset
        self.indexes.note(position, size_bytes, relative_offset, max_timestamp_ms, interval_bytes)
        self.size_bytes = position + size_bytes
        self.end_offset = Offset(last_offset + 1)

    def append_many(
        self, records: memoryview, batches: Iterable[WrittenBatch], interval_bytes: int
    ) -> None:
        """Write several batches to the page cache. If that fails nothing is noted."""
        self.file.append(records)
        for size_bytes, last_offset, max_timestamp_ms in batches:
            relative_offset = last_offset - self.base_offset
            self.indexes.note(
                self.size_bytes, size_bytes, relative_offset, max_timestamp_ms, interval_bytes
            )
            self.size_bytes += size_bytes
            self.end_offset = Offset(last_offset + 1)

    def seal(self) -> "SealedSegment":
        """End this segment where it is. Its indexes are in memory only."""
        self.indexes.finish()
        sealed = SealedSegment(self.directory, self.base_offset, self.end_offset, self.size_bytes)
        sealed.warm_up(self.file, self.indexes)
        sealed.unchecked = self.unchecked
        return sealed


class SealedSegment:
    """A segment that no longer grows. Opened, and its indexes loaded, when it is first read."""

    __slots__ = (
        "_file",
        "_indexes",
        "base_offset",
        "directory",
        "end_offset",
        "has_no_aborted",
        "max_timestamp_ms",
        "size_bytes",
        "unchecked",
    )

    def __init__(
        self, directory: Path, base_offset: Offset, end_offset: Offset, size_bytes: int
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.max_timestamp_ms: TimestampMs | None = None  # known once it has been opened
        self.has_no_aborted = False  # True once it is known that no transaction was aborted here
        self.unchecked = Unchecked(0)
        self._file: File | None = None
        self._indexes: Indexes | None = None

    @property
    def is_warm(self) -> bool:
        return self._indexes is not None

    @property
    def file(self) -> File:
        assert self._file is not None, "opened before it is read"
        return self._file

    @property
    def indexes(self) -> Indexes:
        assert self._indexes is not None, "opened before it is read"
        return self._indexes

    def warm_up(self, file: File, indexes: Indexes) -> None:
        self._file, self._indexes = file, indexes
        self.has_no_aborted = not indexes.aborted

    def cool_down(self) -> None:
        """Give back descriptor and memory; readers that hold the file can finish."""
        self._file = self._indexes = None

    def open(self, files: Files, aborted_crc: int | None) -> None:
        """Make the segment readable. `IndexDamaged` leaves it without indexes: rebuild them.

        `aborted_crc` is the checksum of its aborted transactions, if that is known.
        """
        if self._file is None:
            self._file = files.open(file_path(self.directory, self.base_offset, LOG))
        if self._indexes is None:
            aborted = load_aborted(files, self.directory, self.base_offset, aborted_crc)
            indexes = load_indexes(
                files, self.directory, self.base_offset, self.end_offset, self.size_bytes
            )
            indexes.aborted = aborted
            self._indexes = indexes
            self.has_no_aborted = not aborted


Segment = ActiveSegment | SealedSegment


def walk(file: File, position: Position, end: int) -> Iterator[tuple[Position, BatchHeader]]:
    """The headers from `position`, where a batch begins, to `end`, where one ends."""
    at = int(position)
    while at < end:
        chunk = file.read(at, min(WALK_BYTES, end - at))
        last = len(chunk) - HEADER_BYTES
        if last < 0:
            raise CorruptBatch(f"the segment ends inside a batch at byte {at}")
        inside = 0
        while inside <= last:
            header = read_header(chunk, inside)
            if header.magic != MAGIC or header.length < HEADER_BYTES - LENGTH_END:
                raise CorruptBatch(f"no record batch at byte {at + inside} of its segment")
            yield Position(at + inside), header
            inside += header.length + LENGTH_END
        at += inside


def find_batch(segment: Segment, offset: Offset) -> FoundBatch | None:
    """The batch that holds `offset`, or the first behind it; None at the segment's end."""
    entry = segment.indexes.by_offset.at_or_below(offset - segment.base_offset)
    if entry is None:
        return _walk_until(segment, Position(0), offset, INT64_MAX)
    first = _walk_until(segment, entry[1], 0, INT64_MAX)
    # Recovery enters a batch behind a corrupt one under the offset before it, see there.
    if first is not None and segment.base_offset + entry[0] not in (
        first.base_offset - 1,
        first.last_offset,
    ):
        raise CorruptBatch(f"the offset index is wrong at byte {first.position}")
    if first is None or first.last_offset >= offset:
        return first
    return _walk_until(segment, Position(first.position + first.size_bytes), offset, INT64_MAX)


def find_boundary(segment: Segment, position: Position, end: int) -> tuple[Position, Offset]:
    """The end of the last batch that lies wholly before byte `end`, and the offset behind it.

    The walk begins with the batch at `position`, or nearer to `end` if the index knows one there.
    """
    position = max(position, segment.indexes.by_offset.before_position(end))
    found = _walk_until(segment, position, INT64_MAX, end)
    if found is None:
        return Position(segment.size_bytes), segment.end_offset
    return found.position, found.base_offset


def _walk_until(segment: Segment, position: Position, offset: int, end: int) -> FoundBatch | None:
    """From `position` on, the first batch that reaches `offset` or reaches beyond byte `end`."""
    unpack = HEADER_BOUNDS.unpack_from
    size_bytes = segment.size_bytes
    segment_base, segment_end = segment.base_offset, segment.end_offset
    at = int(position)
    while at < size_bytes:
        chunk = segment.file.read(at, min(WALK_BYTES, size_bytes - at))
        last = len(chunk) - HEADER_BYTES
        if last < 0:
            break
        inside = 0
        while inside <= last:
            base_offset, length, magic, delta = unpack(chunk, inside)
            if (
                magic != MAGIC
                or length < HEADER_BYTES - LENGTH_END
                or not segment_base <= base_offset <= base_offset + delta < segment_end
            ):
                raise CorruptBatch(f"no record batch at byte {at + inside} of its segment")
            length += LENGTH_END
            if base_offset + delta >= offset or at + inside + length > end:
                found = Position(at + inside)
                return FoundBatch(found, base_offset, Offset(base_offset + delta), length)
            inside += length
        at += inside
    return None


def load_indexes(
    files: Files, directory: Path, base_offset: Offset, end_offset: Offset, size_bytes: int
) -> Indexes:
    """A segment's indexes from their files, but for aborted transactions, or `IndexDamaged`."""
    indexes = Indexes()
    try:
        by_offset = files.read_whole(file_path(directory, base_offset, INDEX))
        by_time = files.read_whole(file_path(directory, base_offset, TIME_INDEX))
    except FileNotFoundError:
        raise IndexDamaged("an index file is missing") from None
    indexes.by_offset = OffsetIndex.decode(by_offset, size_bytes)
    indexes.by_time = TimeIndex.decode(by_time, end_offset - base_offset)
    indexes.max_timestamp_ms, indexes.max_timestamp_at = indexes.by_time.last()
    return indexes


def load_aborted(
    files: Files, directory: Path, base_offset: Offset, crc: int | None
) -> list[AbortedTransaction]:
    """A segment's aborted transactions, or `AbortedDamaged`, also if their checksum is not `crc`.

    Most segments have none, and then no file.
    """
    try:
        data = files.read_whole(file_path(directory, base_offset, ABORTED_INDEX))
    except FileNotFoundError:
        data = b""
    return decode_aborted(data, base_offset, crc)


class UnsyncedFile(NamedTuple):
    """A file that takes its name once it is on disk: until then the old one, if any, is good."""

    file: File
    path: str

    def take_name(self, files: Files) -> None:
        files.rename(self.path + TEMPORARY, self.path)

    def remove(self, files: Files) -> None:
        files.unlink(self.path + TEMPORARY)


def begin_indexes(
    files: Files, directory: Path, base_offset: Offset, indexes: Indexes
) -> list[UnsyncedFile]:
    """Write a segment's indexes; they count once they are synced and have taken their names."""
    contents = index_contents(directory, base_offset, indexes)
    return [begin_file(files, path, content) for path, content in contents.items()]


def index_contents(directory: Path, base_offset: Offset, indexes: Indexes) -> dict[str, bytes]:
    """The content of a segment's index files, by path; most have no aborted transactions."""
    contents = {
        file_path(directory, base_offset, INDEX): indexes.by_offset.encode(),
        file_path(directory, base_offset, TIME_INDEX): indexes.by_time.encode(),
    }
    if indexes.aborted:
        aborted = encode_aborted(indexes.aborted)
        contents[file_path(directory, base_offset, ABORTED_INDEX)] = aborted
    return contents


def begin_file(files: Files, path: str, content: bytes) -> UnsyncedFile:
    """Write a file that counts once it is synced and has taken its name."""
    file = files.create(path + TEMPORARY)
    file.append(content)
    return UnsyncedFile(file, path)


def write_indexes(files: Files, directory: Path, base_offset: Offset, indexes: Indexes) -> None:
    """Store a segment's indexes at once; no file of aborted transactions is left if it has none."""
    store_indexes(files, begin_indexes(files, directory, base_offset, indexes))
    if not indexes.aborted:
        files.unlink(directory / file_name(base_offset, ABORTED_INDEX))


def store_indexes(files: Files, begun: Iterable[UnsyncedFile]) -> None:
    """Finish what `begin_indexes` began. On any thread."""
    for unsynced in begun:
        unsynced.file.sync()
        unsynced.take_name(files)


def write_cleaned_indexes(
    files: Files, directory: Path, base_offset: Offset, indexes: Indexes
) -> None:
    """Write the indexes of a segment that is to replace others.

    All three, even when empty: each has to replace an old one, which may not be empty.
    """
    contents = {
        INDEX: indexes.by_offset.encode(),
        TIME_INDEX: indexes.by_time.encode(),
        ABORTED_INDEX: encode_aborted(indexes.aborted),
    }
    for suffix, content in contents.items():
        write_cleaned(files, directory, base_offset, suffix, content)


def write_cleaned(
    files: Files, directory: Path, base_offset: Offset, suffix: str, content: bytes
) -> None:
    """Write one of the files of a segment that is to replace others."""
    file = files.create(file_path(directory, base_offset, suffix + CLEANED))
    file.append(content)
    file.sync()
