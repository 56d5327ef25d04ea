"""Directories of logs inside one data directory: found, made, set aside and removed.

Nothing is removed that no user asked to delete. Which logs are opened, and which belong to topics
that were deleted, is not decided here: `settle_found` asks a judge. What is neither is set aside,
its files as they are, under a name that ends with `-stray`.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ottla.errors import UsageRefused
from ottla.model import TopicPartition, Uuid, format_uuid
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.damages import CORRUPT_FILE
from ottla.storage.files import Entry, Files, replace_file, within
from ottla.storage.found_logs import Expected, Fate, FoundLog, Judge, Verdict
from ottla.storage.names import (
    METADATA_FILE,
    TEMPORARY,
    deleted_name,
    is_deleted_dir,
    is_log_file,
    is_offset,
    parse_log_dir,
    parse_stray,
    stray_name,
)
from ottla.storage.offset_checkpoint import NotedOffsets
from ottla.storage.partition_metadata import (
    MetadataDamaged,
    decode_metadata,
    encode_metadata,
    has_checksum,
)
from ottla.storage.segment import LOG, file_name

FIRST_SEGMENT: Final = file_name(FIRST_OFFSET, LOG)

_log = logging.getLogger("ottla.storage")


class Forgotten(NamedTuple):
    """The directory of a deleted log, and the name that it has while its files go."""

    directory: Path
    aside: Path


class LogDirectories:
    """The directories of logs below one path. No log in them is open."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self.stray_count = 0
        self._files = files
        self._names: dict[TopicPartition, Sequence[str]] = {}  # in logs that are about to be opened

    # Finding

    def find_logs(self, *, is_checked: bool) -> list[FoundLog]:
        """Every log that lies here under its own name. Nothing is opened or changed."""
        found = (tp for tp in map(parse_log_dir, self._directories()) if tp is not None)
        return [
            self._find(tp, is_checked=is_checked)
            for tp in found
            if any(map(_is_segment, self._content(self.path / str(tp))))
        ]

    def settle_found(self, judge: Judge, *, is_checked: bool) -> dict[TopicPartition, Uuid]:
        """Ask about every log that is here, and do what `judge` says; return the logs to open.

        Directories that were being removed when the broker stopped are removed now.
        """
        topic_ids: dict[TopicPartition, Uuid] = {}
        names = self._directories()
        if any(map(is_deleted_dir, names)):
            for name in filter(is_deleted_dir, names):
                self._remove(self.path / name)
            names = self._directories()
        self.stray_count = sum(parse_stray(name) is not None for name in names)
        for tp in map(parse_log_dir, names):
            if tp is None or not self._is_log(tp):
                continue
            topic_id = self._settle(tp, judge, is_checked=is_checked)
            if topic_id is not None:
                topic_ids[tp] = topic_id
            else:  # another log may get its name
                self._names.pop(tp, None)
        if self.stray_count:
            _log.warning("stray logs present", extra={"count": self.stray_count, "path": self.path})
        return topic_ids

    def make_lost(
        self, expected: Expected, noted: NotedOffsets, topic_ids: dict[TopicPartition, Uuid]
    ) -> None:
        """Make the directories of the logs that are expected and not in `topic_ids`; add those.

        They hold no segment: recovery begins one where the log is known to have ended. If the
        process dies before that, the next start finds such a directory and does the same.
        """
        for tp, (topic_id, offset) in noted.items():
            if tp in topic_ids or (topic_id := expected(tp, topic_id)) is None:
                continue
            _log.error(
                "log directory missing",
                extra={
                    "tp": str(tp),
                    "known_end": offset,
                    "help": "it goes on behind this offset: bring the directory back if you can",
                },
            )
            self.make(tp, topic_id)
            self._files.sync_dir(self.path)
            topic_ids[tp] = topic_id

    def _is_log(self, tp: TopicPartition) -> bool:
        """True when a directory with the name of a log is one.

        `create_log` may have been interrupted: no client knows the log, and it is empty.
        Kept, it would never learn its topic's id, and outlive the topic.
        """
        names = self._files.names(within(self.path, str(tp)))
        if METADATA_FILE in names and any(map(_is_segment, names)):
            self._names[tp] = names
            return True
        content = self._content(self.path / str(tp))
        if METADATA_FILE not in content and content and self._is_begun(content):
            self._remove(self.path / str(tp))
            return False
        if METADATA_FILE in content or any(map(_is_segment, content)):
            return True
        if content:
            _log.warning("directory ignored: not a log", extra={"directory": str(tp)})
        return False

    def _settle(self, tp: TopicPartition, judge: Judge, *, is_checked: bool) -> Uuid | None:
        """Do with a log that was found what `judge` says; its topic id if it is to be opened."""
        found = self._find(tp, is_checked=is_checked)
        if found.topic_id is None and self._is_begun(self._content(self.path / str(tp))):
            # The power was cut while `prepare_logs` made it: no client knows it.
            _log.warning("unfinished log removed", extra={"directory": str(tp)})
            self._remove(self.path / str(tp))
            return None
        verdict = judge(found)
        match verdict.fate:
            case Fate.SET_ASIDE:
                self.set_aside(self.path / str(tp), verdict.reason)
            case Fate.DELETE:
                _log.info("log of a deleted topic removed", extra={"tp": str(tp)})
                aside = self.path / deleted_name(tp, int.from_bytes(found.topic_id or b""))
                self.remove(Forgotten(self.path / str(tp), aside))
            case Fate.OPEN:
                return self._claim(found, verdict, is_checked=is_checked)
        return None

    def _find(self, tp: TopicPartition, *, is_checked: bool) -> FoundLog:
        try:
            return FoundLog(tp, self._read_metadata(tp, is_checked=is_checked))
        except FileNotFoundError:
            return FoundLog(tp, None, f"{METADATA_FILE} is missing")
        except MetadataDamaged as damage:
            return FoundLog(tp, None, f"{METADATA_FILE} is damaged: {damage}")

    def _read_metadata(self, tp: TopicPartition, *, is_checked: bool) -> Uuid:
        """The id that `partition.metadata` names, or `MetadataDamaged`."""
        data = self._files.read_whole(within(self.path, f"{tp}/{METADATA_FILE}"))
        return decode_metadata(data, is_checked=is_checked)

    def _claim(self, found: FoundLog, verdict: Verdict, *, is_checked: bool) -> Uuid:
        """The id of a log that is opened, written down with a checksum if it was not."""
        topic_id = found.topic_id or verdict.topic_id
        assert topic_id is not None, "a log is opened with its topic's id"
        if found.topic_id is not None and is_checked:
            return topic_id
        path = self.path / str(found.tp) / METADATA_FILE
        if found.topic_id is None:
            _log.error(
                "topic id rewritten",
                extra={"tp": str(found.tp), "id": format_uuid(topic_id), "reason": found.problem},
            )
        if found.topic_id is None or not has_checksum(self._files.read_whole(path)):
            replace_file(self._files, path, encode_metadata(topic_id))
        return topic_id

    def take_names(self, tp: TopicPartition) -> Sequence[str] | None:
        """The names of the files in a log's directory, once, if `settle_found` has listed them."""
        return self._names.pop(tp, None)

    # Making and removing

    def make(self, tp: TopicPartition, topic_id: Uuid) -> Path:
        """Make the directory of a log, with its `partition.metadata`. On any thread.

        A directory of that name, unless an earlier attempt left it, is set aside.
        """
        directory = self.path / str(tp)
        if not self._is_begun(self._content(directory)):
            self.set_aside(directory, "a new log takes its name")
        self._files.make_dir(directory)
        replace_file(self._files, directory / METADATA_FILE, encode_metadata(topic_id))
        return directory

    def remove(self, forgotten: Forgotten) -> None:
        """The part that waits for the disk, on any thread. Its name is free once this returns."""
        self._files.rename(forgotten.directory, forgotten.aside)
        self._files.sync_dir(self.path)
        self._remove(forgotten.aside)

    def remove_unmade(self, tp: TopicPartition) -> None:
        """Remove what an attempt to make a log has left that failed. On any thread."""
        directory = self.path / str(tp)
        if self._content(directory) and self._is_begun(self._content(directory)):
            self._remove(directory)

    def _remove(self, directory: Path) -> None:
        """Remove a log's directory, unless there is anything in it that is not ours."""
        if foreign := self._foreign(directory):
            self.set_aside(directory, f"it is to be removed, and {foreign[0]!r} in it is not ours")
            return
        for entry in self._files.list(directory):
            self._files.unlink(directory / entry.name)
        self._files.remove_dir(directory)
        self._files.sync_dir(self.path)

    def _foreign(self, directory: Path) -> list[str]:
        """The entries of a log's directory that Ottla has not made."""
        return [
            entry.name
            for entry in self._files.list(directory)
            if entry.is_dir or not is_log_file(entry.name)
        ]

    def _directories(self) -> list[str]:
        return [entry.name for entry in self._files.list(self.path) if entry.is_dir]

    def _content(self, directory: Path) -> dict[str, Entry]:
        """The entries of a directory, by name; none if there is no such directory."""
        try:
            return {entry.name: entry for entry in self._files.list(directory)}
        except FileNotFoundError:
            return {}

    def _is_begun(self, content: Mapping[str, Entry]) -> bool:
        """True when there is no more than `prepare_log` makes: no record can be in it."""
        made = {METADATA_FILE, METADATA_FILE + TEMPORARY, FIRST_SEGMENT}
        is_empty = FIRST_SEGMENT not in content or not content[FIRST_SEGMENT].size_bytes
        return content.keys() <= made and is_empty

    # Strays

    def adopt_stray(self, stray: str, tp: TopicPartition) -> None:
        """Give a stray the name of a log again.

        An empty log that has the name is set aside for it.
        """
        assert parse_stray(stray) is not None, f"not a stray: {stray}"
        directory = self.path / str(tp)
        if self._content(directory):
            self.set_aside(directory, f"{stray} takes its name")
        self._files.rename(self.path / stray, directory)
        self._files.sync_dir(self.path)
        self.stray_count -= 1

    def set_aside(self, directory: Path, reason: str) -> None:
        """Give a directory that is not to be opened another name, and say so. On any thread."""
        taken = {entry.name for entry in self._files.list(self.path)}
        stray = self.path / stray_name(directory.name, taken)
        self._files.rename(directory, stray)
        self._files.sync_dir(self.path)
        self.stray_count += 1
        _log.error(
            "log set aside",
            extra={
                "directory": directory.name,
                "stray": stray.name,
                "reason": reason,
                "help": f"nothing of it was changed: see `ottla log strays list {self.path}`",
            },
        )

    def strays(self) -> list[str]:
        """The names of the directories that were set aside."""
        return [name for name in self._directories() if parse_stray(name) is not None]

    def check_adoptable(self, tp: TopicPartition) -> None:
        """Refuse a name under which there is a log with records, or something else than a log.

        A log without records is empty from its first offset on, or has lost all that it had.
        """
        directory = self.path / str(tp)
        content = self._content(directory)
        segments = {name: entry.size_bytes for name, entry in content.items() if _is_segment(name)}
        is_empty = segments.keys() == {FIRST_SEGMENT} or CORRUPT_FILE in content
        if content and (any(segments.values()) or not is_empty):
            raise UsageRefused(
                f"{directory} is there already, and not an empty log: adopt the stray under another"
                " name with --as, or move that directory away first"
            )

    def purge_stray(self, stray: str) -> None:
        """Remove a stray for good, unless there is anything in it that is not ours."""
        assert parse_stray(stray) is not None, stray
        foreign = self._foreign(self.path / stray)
        if foreign:
            raise UsageRefused(
                f"{self.path / stray} holds {foreign[0]!r}, which is not ours: move it away first"
            )
        self._remove(self.path / stray)


def _is_segment(name: str) -> bool:
    return name.endswith(LOG) and is_offset(name.removesuffix(LOG))
