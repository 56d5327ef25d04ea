"""Kafka's own command line tools: what they are, and a process that runs one after the other."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compat import java
from compat.peers import HERE

_ALONE_S: Final = 60
COMMANDS: Final = HERE / "kafka_commands.toml"
MAIN_CLASSES: Final = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}
# Options that come before the address: these tools have subcommands.
_SUBCOMMANDS: Final = {"cluster", "features"}
_RAISED: Final = re.compile(r"org\.apache\.kafka\.common\.errors\.(\w+)")
# What may differ between two brokers that do the same, and what stands in its place.
_SHAPES: Final = (
    # The broker's own words, behind those of the tool or of its library.
    (re.compile(r"(org\.apache\.kafka\.common\.errors\.\w+:) .*"), r"\1 TEXT"),
    (re.compile(r"^(Error while executing [\w ]+ :) .*"), r"\1 TEXT"),
    (re.compile(r'"/[^"]*"'), '"PATH"'),
    (re.compile(r'"[A-Z]+://'), '"LISTENER://'),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "ADDRESS"),
    # Five digits of the tool's own name for its group make it as long as an id.
    (re.compile(r"console-consumer-\d+"), "console-consumer-N"),
    (re.compile(r"(?<![\w-])(?=[\w-]*[A-Z\d])[\w-]{22}(?![\w-])"), "ID"),
    (re.compile(r"(?<![A-Za-z])-?\d+(\.\d+)?(E-?\d+)?"), "N"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, None if it did not, and what it printed."""

    status: int | None
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A row of the table: what to run, and how to compare what two brokers made of it."""

    name: str
    run: str
    input: str = ""
    lines: tuple[str, ...] = ()
    sorted: bool = False
    alone: bool = False
    status_only: str = ""

    def shape(self, outcome: Outcome) -> list[str]:
        """What must be the same with every broker, the exit code and exceptions first."""
        status = f"exit {outcome.status}"
        if self.status_only:
            return [status]
        found = [shape_of(line) for line in outcome.out.splitlines() if self._counts(line)]
        raised = sorted(set(_RAISED.findall(outcome.out + outcome.err)))
        return [status, *raised, *(sorted(found) if self.sorted else found)]

    def _counts(self, line: str) -> bool:
        is_text = bool(line.strip()) and not line.startswith("\tat ")
        return is_text and (not self.lines or any(text in line for text in self.lines))


def shape_of(line: str) -> str:
    """A line without numbers, ids, addresses and the width of its columns."""
    for pattern, word in _SHAPES:
        line = pattern.sub(word, line)
    return line.strip()


def read_commands(path: Path = COMMANDS) -> tuple[list[Command], dict[str, str]]:
    """The table, in its order, and the files that it names, each with its text."""
    table = tomllib.loads(path.read_text())
    commands = []
    for name, row in table["commands"].items():
        fields = {"run": row} if isinstance(row, str) else dict(row)
        fields["lines"] = tuple(fields.get("lines", ()))
        commands.append(Command(name=name, **fields))
    return commands, table["files"]


class Tools:
    """Runs one tool after the other in one virtual machine, against whichever broker."""

    def __init__(self, directory: Path, files: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._places = {"{empty.properties}": str(directory / "empty.properties")}
        (directory / "empty.properties").touch()
        for name, text in (files or {}).items():
            (directory / name).write_text(text)
            self._places[f"{{{name}}}"] = str(directory / name)
        with (directory / "tools.log").open("wb") as log:
            self._process = subprocess.Popen(
                java.command("ottla.compat.ToolHost", heap_mb=512),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, address: str, command: Command) -> Outcome:
        """How the command ends against the broker at this address."""
        main_class, words = self._words(address, command.run)
        if command.alone:
            return _run_alone(main_class, words)
        request = {"main": main_class, "arguments": words, "input": command.input}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the Java program has ended"
        return Outcome(**json.loads(answer))

    def _words(self, address: str, line: str) -> tuple[str, list[str]]:
        tool, *words = (self._places.get(word, word) for word in shlex.split(line))
        to = ("--bootstrap-server", address)
        words = [*words, *to] if tool in _SUBCOMMANDS else [*to, *words]
        return MAIN_CLASSES[tool], words

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()


def _run_alone(main_class: str, words: Sequence[str]) -> Outcome:
    """In a virtual machine of its own: the tool prints and closes its client while that ends."""
    process = subprocess.Popen(
        java.command(main_class, *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=_ALONE_S)
        return Outcome(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Outcome(None, out, err)
