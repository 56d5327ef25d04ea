"""Options that decide which columns a reader has: headers, the format of values, bad values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.model import topic_name_problem
from ottla.spark.option_reader import OptionReader, OptionRefused


class ValueFormat(StrEnum):
    """The type of the column `value`."""

    BINARY = "binary"
    STRING = "string"
    AVRO = "avro"


class BadRows(StrEnum):
    """The handling of a value that its format cannot parse."""

    FAIL = "fail"  # the query ends, and names the record
    NULL = "null"  # a null, with the bytes beside it
    DEAD_LETTER = "deadletter"  # left out, and written to the dead letter topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """Options that the schema depends on: the same for batches and streams."""

    include_headers: bool = False
    value_format: ValueFormat = ValueFormat.BINARY
    value_schema: str | None = None
    bad_rows: BadRows = BadRows.NULL
    dead_letter_topic: str | None = None

    @property
    def is_typed(self) -> bool:
        return self.value_schema is not None


@dataclass(frozen=True, slots=True)
class BadRowHandling:
    """Handling of bad rows; the dead letter topic belongs to `DEAD_LETTER`."""

    bad_rows: BadRows = BadRows.NULL
    dead_letter_topic: str | None = None


_SCHEMA_EXAMPLES: Final = {
    ValueFormat.AVRO: '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
}
_JSON: Final = "json"


def parse_columns(raw: Mapping[str, str]) -> ColumnOptions:
    """Parse the options that decide about columns."""
    options = OptionReader(raw, ())
    value_format = _value_format(options)
    handling = parse_bad_rows(raw)
    if options.text("badRows") is not None and value_format not in _SCHEMA_EXAMPLES:
        raise OptionRefused(
            f"badRows is for valueFormat={' and '.join(_SCHEMA_EXAMPLES)}:"
            " other values are never read"
        )
    return ColumnOptions(
        include_headers=options.truth("includeHeaders", False),
        value_format=value_format,
        value_schema=_value_schema(options, value_format),
        bad_rows=handling.bad_rows,
        dead_letter_topic=handling.dead_letter_topic,
    )


def parse_bad_rows(raw: Mapping[str, str]) -> BadRowHandling:
    """Parse the options badRows and deadLetterTopic."""
    options = OptionReader(raw, ())
    bad_rows = BadRows(options.choose("badRows", tuple(BadRows), BadRows.NULL))
    topic = options.text("deadLetterTopic")
    if (topic is not None) != (bad_rows is BadRows.DEAD_LETTER):
        raise OptionRefused("badRows=deadLetter and deadLetterTopic belong together: give both")
    if topic is not None and (problem := topic_name_problem(topic)):
        raise OptionRefused(f"deadLetterTopic={topic}: {problem}")
    return BadRowHandling(bad_rows, topic)


def _value_format(options: OptionReader) -> ValueFormat:
    if (options.text("valueFormat") or "").lower() == _JSON:
        raise OptionRefused(
            "valueFormat=json is not an option of the source: JSON is parsed by Spark, with"
            " ottla.spark.with_json_values(records, 'id BIGINT') or, in SQL,"
            " from_json(string(value), 'id BIGINT')"
        )
    return ValueFormat(options.choose("valueFormat", tuple(ValueFormat), ValueFormat.BINARY))


def _value_schema(options: OptionReader, value_format: ValueFormat) -> str | None:
    schema = options.text("valueSchema")
    example = _SCHEMA_EXAMPLES.get(value_format)
    if example and not schema:
        raise OptionRefused(f"valueFormat={value_format} needs valueSchema, for example {example}")
    if schema and not example:
        raise OptionRefused(f"valueSchema is for valueFormat={' and '.join(_SCHEMA_EXAMPLES)}")
    return schema
