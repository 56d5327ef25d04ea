"""Writers of `format("ottla-delta")`: rows go into a Delta table, exactly once, without a jar.

Tasks write Parquet files. The driver adds all files of a batch to the table in one commit, which
also records the query, the number of the batch and its content: the decision about the batch.
A batch that Spark runs again, because a driver died before Spark's commit log, finds its number
there: its files are removed and nothing is added if the content is the same, else it is an error.
A killed driver leaves files that are not in the table; Delta's VACUUM removes them.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.clock import SystemClock
from ottla.spark.batch_decisions import Decision, TaskResult, WriteDecision, choose_action
from ottla.spark.content_digest import NO_ROWS, Content, content_of, sum_contents
from ottla.spark.kernel import warn_if_missing
from ottla.spark.option_reader import OptionRefused
from ottla.spark.parquet_files import DataFile, check_partition_columns, remove_files, write_files
from ottla.spark.read_task import QUERY_ID
from ottla.spark.table_location import STORAGE_PREFIX, TableLocation, parse_location
from ottla.spark.write_options import SPARK_SINK_OPTIONS, parse_accepted_batch

_NAMES: Final = ("path", "partitionColumns", "txnAppId", "txnVersion", "acceptBatch")
_NAME_BYTES: Final = 16
_DIGEST_MASK: Final = 2**63 - 1  # versions of application transactions are signed


class TableRefused(ValueError):
    """A table with other columns than the rows; the text says what to do."""


@dataclass(frozen=True, slots=True)
class AppTransaction:
    """A write that must count once: its application, its number and its content.

    Delta keeps one version number for each application, for ever. The content is kept as the
    versions of two more applications, changed in the same commit.
    """

    app_id: str
    version: int
    content: Content

    def transactions(self) -> list[Transaction]:
        """The application transactions of the Delta commit."""
        return [
            Transaction(self.app_id, self.version),
            Transaction(_rows_app(self.app_id), self.content.rows),
            Transaction(_digest_app(self.app_id), self.content.digest),
        ]


def _rows_app(app_id: str) -> str:
    return f"{app_id}/rows"


def _digest_app(app_id: str) -> str:
    return f"{app_id}/digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """All options of `ottla-delta`, checked."""

    table: TableLocation
    partition_columns: tuple[str, ...] = ()
    txn_app_id: str | None = None
    txn_version: int | None = None
    accepted_batch: int | None = None  # declared written by its user, whatever its content is now


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """Commit message of a task: its files, query and content."""

    files: tuple[DataFile, ...]
    query_id: str | None
    content: Content = NO_ROWS


def parse_delta_options(raw: Mapping[str, str], *, is_stream: bool) -> DeltaOptions:
    """Parse the options of `write` or `writeStream`; raises `OptionRefused`."""
    given = {name.lower(): value.strip() for name, value in raw.items()}
    known = {name.lower() for name in (*_NAMES, *SPARK_SINK_OPTIONS)}
    unknown = {name for name in given.keys() - known if not name.startswith(STORAGE_PREFIX)}
    if unknown:
        raise OptionRefused(
            f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)} and"
            f" {STORAGE_PREFIX}*"
        )
    version = given.get("txnversion")
    if version is not None and not (version.isascii() and version.isdigit()):
        raise OptionRefused(f"txnVersion={version} is not a whole number from 0 on")
    if is_stream and version is not None:
        raise OptionRefused("txnVersion is for batches: Spark numbers the batches of a stream")
    if not is_stream and (version is None) != ("txnappid" not in given):
        raise OptionRefused("txnAppId and txnVersion belong together: give both or neither")
    columns = given.get("partitioncolumns", "")
    return DeltaOptions(
        table=parse_location(given.get("path", ""), given),
        partition_columns=tuple(part.strip() for part in columns.split(",") if part.strip()),
        txn_app_id=given.get("txnappid") or None,
        txn_version=None if version is None else int(version),
        accepted_batch=parse_accepted_batch(given.get("acceptbatch")),
    )


def batch_writer(
    raw: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DeltaBatchWriter":
    """The writer behind `df.write`."""
    warn_if_missing()
    if overwrite:
        raise OptionRefused("ottla-delta only adds rows: write with mode append")
    return DeltaBatchWriter(parse_delta_options(raw, is_stream=False), schema)


def stream_writer(
    raw: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DeltaStreamWriter":
    """The writer behind `df.writeStream`; `overwrite` is true in output mode complete."""
    warn_if_missing()
    if overwrite:
        raise OptionRefused("ottla-delta only adds rows: choose output mode append")
    return DeltaStreamWriter(parse_delta_options(raw, is_stream=True), schema)


class DeltaBatchWriter(DataSourceArrowWriter):
    """Adds the rows of a data frame; with txnAppId and txnVersion, once for any number of runs."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self.options = options
        self.schema = table_schema(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(iterator, self.options, self.schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self.options
        transaction = None
        if options.txn_app_id is not None and options.txn_version is not None:
            content = _content_of(messages)
            transaction = AppTransaction(options.txn_app_id, options.txn_version, content)
        add_files(options, self.schema, _files_of(messages), transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard_files(self.options, _files_of(messages))


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of every micro-batch once."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self.options = options
        self.schema = table_schema(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(iterator, self.options, self.schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        files = _files_of(messages)
        if not files and not self.options.table.exists():
            return  # no rows, and nothing that they could be compared with
        app_id = self.options.txn_app_id or _query_of(messages)
        transaction = AppTransaction(app_id, batchId, _content_of(messages))
        if files:
            add_files(self.options, self.schema, files, transaction)
        else:
            _is_undecided(self.options.table.open(), transaction, self.options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        discard_files(self.options, _files_of(messages))


def table_schema(schema: StructType, options: DeltaOptions) -> pa.Schema:
    """The columns of a table for these rows. All are nullable: whether Spark infers a column as
    not null changes with the query, and a table outlives queries."""
    found = to_arrow_schema(schema.toNullable(), timezone="UTC")
    check_partition_columns(found, options.partition_columns)
    return found


def write_task(
    batches: Iterator[pa.RecordBatch], options: DeltaOptions, schema: pa.Schema
) -> WrittenFiles:
    """Write every row of a task into files with names that no other attempt has."""
    warn_if_missing()
    options.table.prepare()
    contents = list[Content]()

    def measured() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            contents.append(content_of(batch))
            yield batch

    files = write_files(
        measured(),
        options.table.files(),
        schema,
        options.partition_columns,
        new_name=lambda: f"part-{secrets.token_hex(_NAME_BYTES)}.parquet",
    )
    task = TaskContext.get()
    query_id = None if task is None else task.getLocalProperty(QUERY_ID)
    return WrittenFiles(tuple(files), query_id, sum_contents(contents))


def add_files(
    options: DeltaOptions,
    schema: pa.Schema,
    files: Sequence[DataFile],
    transaction: AppTransaction | None,
) -> None:
    """Add files to the table, all or none; removes them if the table has this write already, or
    if it is refused."""
    assert transaction is None or transaction.content.rows == sum(file.rows for file in files)
    table = options.table.create(schema, options.partition_columns)
    table.update_incremental()  # an existing one may have just been created by a concurrent driver
    _check_shape(table, schema, options)
    for is_last in (False, True):
        if not _is_wanted(table, files, transaction, options):
            return
        try:
            table.create_write_transaction(
                [_add_action(file, options) for file in files],
                "append",
                schema,
                list(options.partition_columns),
                commit_properties=_properties(transaction),
            )
            return
        except CommitFailedError:
            # Nothing was added. A driver that was considered dead may have committed the same
            # batch first, or a concurrent one has created the table at the same time.
            table = options.table.open()
            if is_last and _is_wanted(table, files, transaction, options):
                raise


def discard_files(options: DeltaOptions, files: Sequence[DataFile]) -> None:
    """Remove files that are not in the table: a commit that seemed to fail may have taken
    effect."""
    known = set[str]()
    if options.table.exists():
        known = {uri.rpartition("/")[2] for uri in options.table.open().file_uris()}
    remove_files(options.table.files(), [file for file in files if file.name not in known])


def _check_shape(table: DeltaTable, schema: pa.Schema, options: DeltaOptions) -> None:
    has = {field.name: field.type for field in table.schema().fields}
    needs = {field.name: field.type for field in Schema.from_arrow(schema).fields}
    if different := sorted(
        name for name in has | needs if name not in has or has[name] != needs.get(name)
    ):
        raise TableRefused(
            f"the table in {options.table.uri} has other columns than these rows"
            f" ({', '.join(different)}): select what it has, or choose another path"
        )
    split_by = table.metadata().partition_columns
    if tuple(split_by) != options.partition_columns:
        raise TableRefused(
            f"the table in {options.table.uri} is split by {', '.join(split_by) or 'nothing'}:"
            " say so in partitionColumns, or choose another path"
        )


def _is_wanted(
    table: DeltaTable,
    files: Sequence[DataFile],
    transaction: AppTransaction | None,
    options: DeltaOptions,
) -> bool:
    """True if the files are to be added; otherwise removes them."""
    if transaction is None:
        return True
    try:
        is_undecided = _is_undecided(table, transaction, options)
    except BaseException:
        discard_files(options, files)
        raise
    if not is_undecided:
        discard_files(options, files)
    return is_undecided


def _is_undecided(table: DeltaTable, transaction: AppTransaction, options: DeltaOptions) -> bool:
    """True if the table does not have this batch; `BatchRefused` if with other content."""
    noted = table.transaction_version(transaction.app_id)
    rows = table.transaction_version(_rows_app(transaction.app_id))
    digest = table.transaction_version(_digest_app(transaction.app_id))
    history = dict[int, Decision]()
    if noted is not None and rows is not None and digest is not None:
        history[noted] = Decision(noted, Content(rows, digest))
    action = choose_action(
        transaction.version,
        [TaskResult(transaction.content)],
        history,
        accepted=options.accepted_batch,
        last_of_old_version=None if history else noted,
    )
    return isinstance(action, WriteDecision)


def _properties(transaction: AppTransaction | None) -> CommitProperties | None:
    if transaction is None:
        return None
    return CommitProperties(app_transactions=transaction.transactions())


def _add_action(file: DataFile, options: DeltaOptions) -> AddAction:
    return AddAction(
        path=file.name,
        size=file.size_bytes,
        partition_values=dict(zip(options.partition_columns, file.partition_values, strict=True)),
        modification_time=SystemClock().now_ms(),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _files_of(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    """The files of all tasks; failed tasks have removed theirs and send no message."""
    return [file for one in messages if isinstance(one, WrittenFiles) for file in one.files]


def _content_of(messages: Sequence[WriterCommitMessage | None]) -> Content:
    """The content of all files."""
    found = sum_contents(one.content for one in messages if isinstance(one, WrittenFiles))
    return Content(found.rows, found.digest & _DIGEST_MASK)


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    for one in messages:
        if isinstance(one, WrittenFiles) and one.query_id is not None:
            return one.query_id
    raise OptionRefused("Spark does not say which query this is: name it with txnAppId")
