"""Searches the table of parsed lines, without Spark: deltalake reads it and runs the SQL.

Files are left out by day and by the statistics of their columns; there is no index of words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

Row = dict[str, Any]


class SearchRefused(Exception):
    """A search that cannot be done; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What lines must have; everything that is given."""

    words: Sequence[str] = ()
    service: str | None = None
    level: str | None = None
    since: str | None = None  # a time as SQL reads it
    limit: int = 100

    def sql(self) -> str:
        """The newest lines that match, the oldest of them first."""
        conditions = [f"strpos(lower(message), {quoted(word.lower())}) > 0" for word in self.words]
        if self.service is not None:
            conditions.append(f"service = {quoted(self.service)}")
        if self.level is not None:
            conditions.append(f"level = {quoted(self.level.upper())}")
        if self.since is not None:
            conditions.append(f"time >= CAST({quoted(self.since)} AS TIMESTAMP)")
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        newest = f'SELECT * FROM logs {where}ORDER BY time DESC, "offset" DESC LIMIT {self.limit}'
        return (
            "SELECT to_char(time, '%Y-%m-%dT%H:%M:%SZ') AS time, service, level, message"
            f' FROM ({newest}) ORDER BY time, "offset"'
        )


def table_of(home: Path) -> Path:
    """The directory of the table."""
    return home / "index"


def quoted(text: str) -> str:
    """A string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def run_sql(table: Path, sql: str) -> list[Row]:
    """The rows of a query on the table `logs`."""
    try:
        builder = QueryBuilder().register("logs", DeltaTable(table))
        rows: list[Row] = pa.table(builder.execute(sql).read_all()).to_pylist()
    except TableNotFoundError:
        raise SearchRefused(f"there is no table in {table}: index some lines first") from None
    except (DeltaError, ValueError, OSError) as problem:
        raise SearchRefused(str(problem).strip().partition("\n")[0]) from None
    return rows
