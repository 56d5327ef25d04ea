"""`ottla pipeline run`: a file with a function `pipeline(spark)`."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.errors import UsageRefused
from ottla.spark.pipelines.declaration import Declaration


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The pipeline of a user's file: its function returns `df.writeStream` without `.start()`."""

    file: Path
    name: str = ""

    @property
    def declaration(self) -> Declaration:
        return Declaration(
            command="run",
            name=self.name or self.file.stem,
            source=f"program {self.file.name}",
            sink="as the program says",
        )

    def build(self, spark: SparkSession) -> DataStreamWriter:
        made = load_function(self.file)(spark)
        if isinstance(made, DataStreamWriter):
            return made
        hint = " (leave out .start())" if hasattr(made, "awaitTermination") else ""
        hint = " (add .writeStream and a format)" if isinstance(made, DataFrame) else hint
        raise UsageRefused(
            f"{self.file}: pipeline(spark) returned a {type(made).__name__},"
            f" not a writer such as df.writeStream.format(...){hint}"
        )


def load_function(file: Path) -> Callable[[SparkSession], object]:
    """The function `pipeline` of a file, which is imported as a module of its name."""
    if not file.is_file():
        raise UsageRefused(f"{file}: there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageRefused(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent.absolute()))  # it may import modules beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    function = getattr(module, "pipeline", None)
    if not callable(function):
        raise UsageRefused(f"{file} has no function pipeline(spark)")
    found: Callable[[SparkSession], object] = function
    return found
