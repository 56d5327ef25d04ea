"""A member of a group that a test can start, watch, ask to leave and kill."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict

from compat.adapter import PATIENCE_S

_PROGRAM: Final = Path(__file__).with_name("group_process.py")
_KCAT_ASSIGNED: Final = re.compile(r"rebalanced \(memberid .*\): (assigned|revoked): ?(.*)")
_KCAT_PARTITION: Final = re.compile(r"(\S+) \[(\d+)\]")

Partition = tuple[str, int]


class MemberOptions(TypedDict, total=False):
    """Options of a member that tests pass on to it."""

    pattern: str
    instance: str
    strategy: str
    protocol: str
    session_ms: int


class Member:
    """Owned partitions as last reported, every change of them, and every record so far."""

    def __init__(
        self,
        client: str,
        address: str,
        group: str,
        *topics: str,
        pattern: str = "",
        instance: str = "",
        strategy: str = "range",
        protocol: str = "classic",
        session_ms: int = 6000,
    ) -> None:
        self.owned: frozenset[Partition] = frozenset()
        self.changes: list[frozenset[Partition]] = []
        self.records: list[tuple[str, int, int, str]] = []
        self._errors: list[str] = []
        take: Callable[[str], None]
        take_error: Callable[[str], None]
        if client == "kcat":
            command = ["kcat", "-b", address, "-G", group, *(topics or (f"^{pattern}",)), "-u"]
            command += ["-f", "R %t %p %o %s\\n", "-Xauto.offset.reset=earliest"]
            command += [f"-Xsession.timeout.ms={session_ms}", "-Xheartbeat.interval.ms=200"]
            command += [
                "-Xauto.commit.interval.ms=100",
                f"-Xpartition.assignment.strategy={strategy}",
            ]
            take, take_error = self._take_kcat_record, self._take_kcat_news
        else:
            settings = {
                "address": address,
                "group": group,
                "topics": topics,
                "pattern": pattern,
                "instance": instance,
                "strategy": strategy,
                "protocol": protocol,
                "session_ms": session_ms,
            }
            command = [sys.executable, str(_PROGRAM), client, json.dumps(settings)]
            take, take_error = self._take_line, self._errors.append
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._threads = [
            threading.Thread(target=_read, args=(self._process.stdout, take), daemon=True),
            threading.Thread(target=_read, args=(self._process.stderr, take_error), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        """What a failed test shows."""
        status = self._process.poll()
        return f"Member({status=}, {self.changes=}, {len(self.records)=}, {self._errors[-20:]=})"

    @property
    def values(self) -> list[str]:
        return [value for _, _, _, value in self.records]

    def leave(self) -> None:
        """End it as its user would."""
        self._end(signal.SIGTERM)
        assert self._process.returncode == 0, self._errors

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signum: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signum)
            self._process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _take_line(self, line: str) -> None:
        said: dict[str, Any] = json.loads(line)
        if "record" in said:
            topic, partition, offset, value = said["record"]
            self.records.append((topic, partition, offset, value))
        else:
            self._note_owned(frozenset((topic, index) for topic, index in said["owned"]))

    def _take_kcat_record(self, line: str) -> None:
        _, topic, partition, offset, value = line.split(" ", 4)
        self.records.append((topic, int(partition), int(offset), value.rstrip("\n")))

    def _take_kcat_news(self, line: str) -> None:
        found = _KCAT_ASSIGNED.search(line)
        if found is None:
            self._errors.append(line)
        elif found[1] == "assigned":
            self._note_owned(
                frozenset((topic, int(index)) for topic, index in _KCAT_PARTITION.findall(found[2]))
            )
        else:
            self._note_owned(frozenset())

    def _note_owned(self, owned: frozenset[Partition]) -> None:
        self.owned = owned
        self.changes.append(owned)


def _read(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
