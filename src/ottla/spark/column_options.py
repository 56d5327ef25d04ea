"""Options that decide which columns a reader has: headers, the format of values, bad values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.model import topic_name_problem
from ottla.spark.option_reader import OptionReader, OptionRefused
from ottla.spark.registry_options import RegistryOptions, parse_registry, parse_subject
from ottla.spark.subscription import topics_of


class ValueFormat(StrEnum):
    """The type of the column `value`."""

    BINARY = "binary"
    STRING = "string"
    AVRO = "avro"
    PROTOBUF = "protobuf"  # of a schema registry
    JSON = "json"  # the text behind the schema id of a registry


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
    registry: RegistryOptions | None = None  # values have a schema id of it in front
    subject: str | None = None  # whose newest schema gives the columns, without a value_schema
    bad_rows: BadRows = BadRows.NULL
    dead_letter_topic: str | None = None

    @property
    def is_typed(self) -> bool:
        return self.value_format in _PARSED


@dataclass(frozen=True, slots=True)
class BadRowHandling:
    """Handling of bad rows; the dead letter topic belongs to `DEAD_LETTER`."""

    bad_rows: BadRows = BadRows.NULL
    dead_letter_topic: str | None = None


AVRO_EXAMPLE: Final = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
_PARSED: Final = (ValueFormat.AVRO, ValueFormat.PROTOBUF, ValueFormat.JSON)


def parse_columns(raw: Mapping[str, str]) -> ColumnOptions:
    """Parse the options that decide about columns."""
    options = OptionReader(raw, ())
    value_format = ValueFormat(
        options.choose("valueFormat", tuple(ValueFormat), ValueFormat.BINARY)
    )
    registry, schema = parse_registry(raw), options.text("valueSchema")
    check_value_format(options, value_format, registry)
    handling = parse_bad_rows(raw)
    if value_format not in _PARSED:
        for name in ("badRows", "valueSchema", "valueSubject"):
            if options.text(name) is not None:
                raise OptionRefused(f"{name} is for valueFormat={', '.join(_PARSED)}")
    if value_format is not ValueFormat.AVRO and schema:
        raise OptionRefused(
            "valueSchema is for valueFormat=avro: other values are read with the schema of their"
            " subject"
        )
    has_subject = registry is not None and not schema and value_format is not ValueFormat.JSON
    return ColumnOptions(
        include_headers=options.truth("includeHeaders", False),
        value_format=value_format,
        value_schema=schema,
        registry=registry,
        subject=parse_subject(options, topics_of(options)) if has_subject else None,
        bad_rows=handling.bad_rows,
        dead_letter_topic=handling.dead_letter_topic,
    )


def check_value_format(
    options: OptionReader, value_format: ValueFormat, registry: RegistryOptions | None
) -> None:
    """Refuse a format without the schema that it needs."""
    if registry is not None:
        if value_format not in _PARSED:
            raise OptionRefused(f"schema.registry.url needs valueFormat={', '.join(_PARSED)}")
        return
    match value_format:
        case ValueFormat.JSON:
            raise OptionRefused(
                "valueFormat=json is for values of a schema registry (schema.registry.url). Other"
                " JSON is parsed by Spark, with ottla.spark.with_json_values(records, 'id BIGINT')"
                " or, in SQL, from_json(string(value), 'id BIGINT')"
            )
        case ValueFormat.PROTOBUF:
            raise OptionRefused("valueFormat=protobuf needs schema.registry.url")
        case ValueFormat.AVRO if not options.text("valueSchema"):
            raise OptionRefused(
                f"valueFormat=avro needs valueSchema, for example {AVRO_EXAMPLE}, or"
                " schema.registry.url"
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
