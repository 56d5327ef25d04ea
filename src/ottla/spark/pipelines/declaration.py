"""The declaration of a pipeline: shown before a run, stored with its checkpoint, compared."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME_LENGTH_MAX: Final = 120
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class CheckpointRefused(ValueError):
    """A checkpoint that belongs to another pipeline; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Source, steps and sink of a pipeline."""

    command: str
    name: str
    source: str
    sink: str
    steps: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of its checkpoint, its query and its consumer group."""
        return _STRANGE.sub("-", f"{self.command}-{self.name}").strip("-.")[:NAME_LENGTH_MAX]

    def description(self) -> dict[str, str]:
        """Everything that must not change while a checkpoint exists."""
        return {"command": self.command, "source": self.source, "sink": self.sink, **self.steps}


class StreamPipeline(Protocol):
    """A streaming pipeline: its query has neither trigger nor checkpoint yet."""

    @property
    def declaration(self) -> Declaration: ...

    def build(self, spark: SparkSession) -> DataStreamWriter: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The directory of Spark's checkpoint, and the declaration file beside it."""

    directory: Path

    @classmethod
    def of(cls, declaration: Declaration, checkpoints: Path) -> "Checkpoint":
        return cls(checkpoints.absolute() / declaration.label)

    @property
    def declared_file(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.json")

    def claim(self, declaration: Declaration) -> None:
        """Reserve the checkpoint for this pipeline; raises `CheckpointRefused`."""
        self.check(declaration)
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.declared_file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(declaration.description(), indent=2) + "\n")
        unfinished.replace(self.declared_file)

    def check(self, declaration: Declaration) -> None:
        """Raise `CheckpointRefused` if the checkpoint is another pipeline's; changes nothing."""
        if not self.directory.exists():
            return
        if problem := _difference(self._declared(), declaration.description()):
            raise CheckpointRefused(
                f"the checkpoint {self.directory} belongs to another pipeline: {problem}."
                " Choose another with --name, or remove that directory to start from the beginning"
            )

    def _declared(self) -> dict[str, str]:
        try:
            found = json.loads(self.declared_file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if not before:
        return "its declaration is missing"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(
        f"{name} was {before.get(name, 'not given')} and is {now.get(name, 'not given')}"
        for name in names
    )
