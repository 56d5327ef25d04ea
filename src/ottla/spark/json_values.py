"""JSON values as columns, parsed by Spark's own `from_json`.

A Python source cannot run Spark's expressions, so JSON is parsed behind the source, in the plan of
the query: every type and value is what `from_json` makes of it.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction

from ottla.spark.broker_options import BrokerOptions, parse_broker_options
from ottla.spark.column_options import BadRows, parse_bad_rows
from ottla.spark.dead_letters import CORRUPT, ORIGIN_COLUMNS, write_dead_letters
from ottla.spark.option_reader import OptionRefused

# The field in which from_json reports the text of a value that it could not parse completely.
_CORRUPT_RECORD: Final = "_corrupt_record"
_PARSED: Final = "_parsed"
_LOCATION: Final = ("topic", "partition", "offset")
_REASON: Final = "from_json cannot make all fields of it"


def with_json_values(
    records: DataFrame,
    schema: str | StructType,
    *,
    bad_rows: str = BadRows.NULL,
    dead_letter_topic: str | None = None,
    brokers: Mapping[str, str] | None = None,
) -> DataFrame:
    """Records of `format("ottla")` with `value` parsed by `from_json(value, schema)`.

    A value is bad if it is not null and `from_json` makes no row of it, or cannot make all fields.
    `bad_rows` is as the option badRows: `null` adds the column `_corrupt` with the bytes of bad
    values, beside the fields that could be parsed; `fail` and `deadLetter` need the columns topic,
    partition and offset, `deadLetter` also `dead_letter_topic` and `brokers`, the options that
    name the brokers (`kafka.bootstrap.servers`).
    """
    handling = parse_bad_rows(
        {"badRows": bad_rows}
        | ({} if dead_letter_topic is None else {"deadLetterTopic": dead_letter_topic})
    )
    _check_columns(records, handling.bad_rows)
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, StructType):
        raise OptionRefused(
            f"the schema of values is a list of fields, such as id BIGINT: {schema}"
        )
    value, parsed = sql.col("value"), sql.col(_PARSED)
    frame = records.withColumn(
        _PARSED, sql.from_json(value.cast("string"), _with_corrupt_record(struct), _OPTIONS)
    )
    is_bad = value.isNotNull() & (parsed.isNull() | parsed[_CORRUPT_RECORD].isNotNull())
    corrupt = sql.when(is_bad, value.cast("binary"))
    if CORRUPT in records.columns:  # of values without the id of a schema registry
        is_bad, corrupt = is_bad | sql.col(CORRUPT).isNotNull(), sql.coalesce(CORRUPT, corrupt)
    typed = parsed if _CORRUPT_RECORD in struct.names else parsed.dropFields(_CORRUPT_RECORD)
    if handling.bad_rows is BadRows.FAIL:
        typed = sql.when(is_bad, sql.raise_error(_explanation())).otherwise(typed)
    columns = [
        typed.alias("value") if name == "value" else name
        for name in records.columns
        if name != CORRUPT
    ]
    if handling.bad_rows is BadRows.FAIL:
        return frame.select(*columns)
    made = frame.select(*columns, corrupt.alias(CORRUPT))
    if handling.bad_rows is BadRows.NULL:
        return made
    assert handling.dead_letter_topic is not None
    is_kept = _dead_letter_udf(handling.dead_letter_topic, parse_broker_options(brokers or {}))
    # Null for good rows: only what is needed goes through Python.
    fields = [name for name in ORIGIN_COLUMNS if name in records.columns]
    bad_row = sql.when(sql.col(CORRUPT).isNotNull(), sql.struct(CORRUPT, *fields))
    return made.where(is_kept(bad_row)).drop(CORRUPT)


def _dead_letter_udf(topic: str, brokers: BrokerOptions) -> Callable[[Column], Column]:
    """A predicate that is true for nulls, and false for bad rows, which become dead letters."""

    def is_kept(rows: pa.Array) -> pa.Array:
        return write_dead_letters(rows, topic, _REASON, brokers)

    # By its type hints, which the stubs of arrow_udf do not know.
    make = cast("Callable[[Callable[..., pa.Array], str], UserDefinedFunction]", arrow_udf)
    return make(is_kept, "BOOLEAN").asNondeterministic()  # once for a row, in its place


_OPTIONS: Final = {"columnNameOfCorruptRecord": _CORRUPT_RECORD}


def _with_corrupt_record(struct: StructType) -> StructType:
    if _CORRUPT_RECORD in struct.names:
        return struct
    return StructType([*struct.fields, StructField(_CORRUPT_RECORD, StringType())])


def _check_columns(records: DataFrame, bad_rows: BadRows) -> None:
    needed = ["value"]
    if bad_rows is not BadRows.NULL:
        needed += _LOCATION
    if missing := [name for name in needed if name not in records.columns]:
        raise OptionRefused(f"with_json_values: the records have no column {', '.join(missing)}")
    if _PARSED in records.columns:
        raise OptionRefused(f"with_json_values: rename the column {_PARSED}")


def _explanation() -> Column:
    topic, partition, offset = (sql.col(name).cast("string") for name in _LOCATION)
    return sql.concat(
        topic,
        sql.lit("-"),
        partition,
        sql.lit(" offset "),
        offset,
        sql.lit(f": the value is bad: {_REASON} (bad_rows null or deadLetter continues after it)"),
    )
