"""Values for a schema registry: Avro, Protobuf or JSON, each behind the id of its schema."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ottla.spark.avro_values import avro_writer, read_schema
from ottla.spark.column_options import ValueFormat
from ottla.spark.encode import RowRefused
from ottla.spark.option_reader import OptionRefused
from ottla.spark.registry import kind_of, read_protobuf, registry_for, schema_text_of
from ottla.spark.wire_format import header_of
from ottla.spark.write_options import EncodingOptions

_TEXTS: Final = (pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class ValueEncoding:
    """The schema of a writer's values. Made by the driver, so tasks do not ask the registry."""

    value_format: ValueFormat
    schema_id: int
    schema: str

    def check(self, value_type: pa.DataType) -> None:
        """Refuse a column `value` that does not fit the schema, before anything is written."""
        if self.value_format is ValueFormat.JSON:
            if value_type not in _TEXTS:
                raise OptionRefused(
                    f"column value is {value_type}: with valueFormat=json it is a STRING, such as"
                    " to_json(struct(*))"
                )
            return
        if not pa.types.is_struct(value_type):
            raise OptionRefused(
                f"column value is {value_type}: with valueFormat={self.value_format} it is a"
                " STRUCT, such as struct(*)"
            )
        theirs = {field.name: field.type for field in self._struct()}
        for field in value_type:
            if theirs.get(field.name) != field.type:
                raise OptionRefused(
                    f"value.{field.name} is {field.type}, and"
                    f" {theirs.get(field.name, 'no field')} in the schema"
                )

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with their values in the wire format."""
        write = self._writer()
        for batch in batches:
            at = batch.schema.get_field_index("value")
            values = batch.column(at).to_pylist(maps_as_pydicts="strict")
            made = pa.array([_written(value, write) for value in values], pa.binary())
            yield batch.set_column(at, "value", made)

    def _struct(self) -> pa.StructType:
        if self.value_format is ValueFormat.AVRO:
            return read_schema(self.schema).arrow
        return read_protobuf(self.schema).type.arrow

    def _writer(self) -> Callable[[Any], bytes]:
        header = header_of(self.schema_id)
        if self.value_format is ValueFormat.AVRO:
            write = avro_writer(self.schema)
            return lambda row: header + write(row)
        if self.value_format is ValueFormat.PROTOBUF:
            schema = read_protobuf(self.schema)
            return lambda row: schema.encode(row, self.schema_id)
        return lambda text: header + (text.encode() if isinstance(text, str) else text)


def resolve_encoding(options: EncodingOptions) -> ValueEncoding:
    """The schema that values are written with: valueSchema, registered, or the subject's newest."""
    registry, kind = registry_for(options.registry), kind_of(options.value_format)
    if options.schema is None:
        found = registry.latest(options.subject, kind)
    else:
        found = registry.register(options.subject, kind, options.schema)
    text = "" if options.value_format is ValueFormat.JSON else schema_text_of(found)
    return ValueEncoding(options.value_format, found.id, text)


def _written(value: object, write: Callable[[Any], bytes]) -> bytes | None:
    if value is None:
        return None
    try:
        return write(value)
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        raise RowRefused(f"a value does not fit its schema: {problem}") from None
