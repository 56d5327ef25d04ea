"""Where a Delta table lies: a directory, or a path in an object store that deltalake knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from ottla.spark.option_reader import OptionRefused

STORAGE_PREFIX: Final = "storage."
# Object stores of the deltalake package, by the scheme of their paths.
_OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The path of a table, and deltalake's storage options for it."""

    uri: str
    storage: tuple[tuple[str, str], ...] = ()

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    def prepare(self) -> None:
        """Create the directory of a table; object stores have none."""
        if self.is_local:
            Path(self.uri).mkdir(parents=True, exist_ok=True)

    def files(self) -> pa.fs.FileSystem:
        """The files of the table, by their names in it."""
        if self.is_local:
            return pa.fs.SubTreeFileSystem(self.uri, pa.fs.LocalFileSystem())
        return pa.fs.PyFileSystem(_StorageHandler(self.uri, dict(self.storage)))

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri, dict(self.storage))

    def open(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=dict(self.storage))

    def create(self, schema: pa.Schema, partition_columns: tuple[str, ...]) -> DeltaTable:
        """The table, created if it does not exist."""
        return DeltaTable.create(
            self.uri,
            schema,
            mode="ignore",
            partition_by=list(partition_columns),
            storage_options=dict(self.storage),
        )


class _StorageHandler(DeltaStorageHandler):
    """deltalake's file system, whose streams take bytes alone, where Arrow writes buffers."""

    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        stream = self._handler.open_output_stream(path, metadata)
        return pa.PythonFile(_BytesStream(stream), mode="w")


class _BytesStream(RawIOBase):
    """A stream that is given bytes, whatever is written."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def parse_location(path: str, given: Mapping[str, str]) -> TableLocation:
    """Parse the option path, and the options `storage.*` of an object store."""
    storage = tuple(
        sorted(
            (name.removeprefix(STORAGE_PREFIX), value)
            for name, value in given.items()
            if name.startswith(STORAGE_PREFIX)
        )
    )
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        path = "/" + rest.lstrip("/")
    elif "://" in path:
        if scheme not in _OBJECT_STORES:
            raise OptionRefused(
                f"path={path}: {scheme} is neither a directory nor an object store of deltalake:"
                f" {', '.join(_OBJECT_STORES)}"
            )
        return TableLocation(path, storage)
    if not path:
        raise OptionRefused('no path: give the directory of a table: .option("path", DIR)')
    if storage:
        raise OptionRefused(f"{STORAGE_PREFIX}{storage[0][0]} is for object stores, such as s3://")
    return TableLocation(str(Path(path).absolute()))
