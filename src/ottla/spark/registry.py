"""Schemas of a schema registry, through the client of confluent-kafka (ADR 29)."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.spark.avro_values import ReadRow, registered_reader
from ottla.spark.column_options import ColumnOptions, ValueFormat
from ottla.spark.option_reader import REGISTRY_PREFIX, OptionRefused
from ottla.spark.registry_options import RegistryOptions

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

    from ottla.spark.protobuf_values import ProtobufSchema

T = TypeVar("T")

AVRO: Final = "AVRO"
PROTOBUF: Final = "PROTOBUF"
_SERIALIZED: Final = "serialized"  # a FileDescriptorProto in base64 instead of a .proto text
_NOT_FOUND: Final = 404
MISSING_S: Final = 5.0  # after that an id that was missing is asked for again
_KINDS: Final = {
    ValueFormat.AVRO: AVRO,
    ValueFormat.PROTOBUF: PROTOBUF,
    ValueFormat.JSON: "JSON",
}


class RegistryFailed(Exception):
    """The registry could not be asked, or refused; never the fault of a value."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry: its id, its text, and for Protobuf the files that it imports."""

    id: int
    kind: str
    text: str
    files: tuple[tuple[str, str], ...] = ()  # name and serialized text


class Registry:
    """Schemas by subject and by id; those by id are kept, for they never change.

    An id that is missing may be there soon: it is asked for again, but not for every record.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._url = options.url
        self._client = _client(options)
        self._by_id: dict[int, RegisteredSchema] = {}
        self._missing_until_s: dict[int, float] = {}

    def latest(self, subject: str, kind: str) -> RegisteredSchema:
        """The newest schema of a subject; `OptionRefused` if there is none of this kind."""
        found = self._ask(lambda: self._client.get_latest_version(subject, fmt=_form_of(kind)))
        if found is None:
            raise OptionRefused(
                f"subject {subject} is not in the schema registry {self._url}: register a schema,"
                " or name another subject with valueSubject"
            )
        made = self._registered(found.schema_id or 0, found.schema)
        if made.kind != kind:
            raise OptionRefused(f"subject {subject} has a schema of {made.kind}, not {kind}")
        return made

    def by_id(self, schema_id: int, kind: str) -> RegisteredSchema | None:
        """The schema of an id; None if the registry has none."""
        known, now_s = self._by_id.get(schema_id), time.monotonic()
        if known is not None or now_s < self._missing_until_s.get(schema_id, now_s):
            return known
        found = self._ask(lambda: self._client.get_schema(schema_id, fmt=_form_of(kind)))
        if found is None:
            self._missing_until_s[schema_id] = now_s + MISSING_S
            return None
        made = self._by_id[schema_id] = self._registered(schema_id, found)
        return made

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """The schema of this text, registered under a subject unless it is there."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415

        schema_id = self._ask(lambda: self._client.register_schema(subject, Schema(text, kind)))
        found = None if schema_id is None else self.by_id(schema_id, kind)
        if found is None:
            raise RegistryFailed(f"the schema registry {self._url} has no subject {subject}")
        return found

    def _registered(self, schema_id: int, schema: "Schema") -> RegisteredSchema:
        kind, references = schema.schema_type or AVRO, schema.references or []
        if references and kind != PROTOBUF:
            raise OptionRefused(
                f"schema {schema_id} refers to {references[0].name}: schemas that refer to others"
                " are supported for Protobuf alone"
            )
        files = tuple(self._files(references, set()))
        return RegisteredSchema(schema_id, kind, schema.schema_str or "", files)

    def _files(self, references: "list[SchemaReference]", seen: set[str]) -> list[tuple[str, str]]:
        """Imported files, each behind those that it imports."""
        files = list[tuple[str, str]]()
        for one in references:
            name, subject, version = str(one.name), str(one.subject), one.version or 1
            if name in seen:
                continue
            seen.add(name)
            found = self._ask(partial(self._client.get_version, subject, version, fmt=_SERIALIZED))
            if found is None:
                raise RegistryFailed(f"the schema registry {self._url} lacks {subject} {version}")
            files += self._files(found.schema.references or [], seen)
            files.append((name, found.schema.schema_str or ""))
        return files

    def _ask(self, request: Callable[[], T]) -> T | None:
        """The result of a request; None for what is not there."""
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415

        try:
            return request()
        except SchemaRegistryError as problem:
            if problem.http_status_code == _NOT_FOUND:
                return None
            raise RegistryFailed(f"the schema registry {self._url} refused: {problem}") from None
        except Exception as problem:  # noqa: BLE001  # of the client's HTTP library, by version
            raise RegistryFailed(
                f"the schema registry {self._url} cannot be reached: {problem!r}"
            ) from None


def resolve_columns(options: ColumnOptions) -> ColumnOptions:
    """Column options with the newest schema of their subject, if they have one."""
    if options.registry is None or options.subject is None:
        return options
    kind = _KINDS[options.value_format]
    found = registry_for(options.registry).latest(options.subject, kind)
    return replace(options, value_schema=schema_text_of(found))


def schema_text_of(schema: RegisteredSchema) -> str:
    """The text that columns are made of: Avro's JSON, or Protobuf's descriptors."""
    if schema.kind != PROTOBUF:
        return schema.text
    _need_protobuf()
    from ottla.spark.protobuf_values import descriptor_set  # noqa: PLC0415

    return descriptor_set(schema.text, schema.files)


def kind_of(value_format: ValueFormat) -> str:
    """The name that a registry has for a format."""
    return _KINDS[value_format]


@cache
def avro_reader_of(schema_text: str, options: RegistryOptions) -> ReadRow:
    """A function that parses values with a schema id of this registry."""

    def writer_schema(schema_id: int) -> str | None:
        found = registry_for(options).by_id(schema_id, AVRO)
        return found.text if found is not None and found.kind == AVRO else None

    return registered_reader(schema_text, writer_schema)


def read_protobuf(schema_text: str) -> "ProtobufSchema":
    """The Protobuf schema of a text that `schema_text_of` made."""
    _need_protobuf()
    from ottla.spark.protobuf_values import read_protobuf_schema  # noqa: PLC0415

    return read_protobuf_schema(schema_text)


def _need_protobuf() -> None:
    try:
        import google.protobuf  # noqa: F401, PLC0415
    except ImportError:
        raise OptionRefused(
            "valueFormat=protobuf needs protobuf, here and on every executor:"
            " pip install 'ottla[registry]'"
        ) from None


def registry_for(options: RegistryOptions) -> Registry:
    """The registry of this process, made on first use."""
    return _registry_of_process(os.getpid(), options)  # a fork must not share connections


@cache
def _registry_of_process(_: int, options: RegistryOptions) -> Registry:
    return Registry(options)


def _form_of(kind: str) -> str | None:
    return _SERIALIZED if kind == PROTOBUF else None


def _client(options: RegistryOptions) -> "SchemaRegistryClient":
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError:
        raise OptionRefused(
            "schema.registry.url needs a client of the registry, here and on every executor:"
            " pip install 'ottla[registry]'"
        ) from None
    try:
        return SchemaRegistryClient(dict(options.settings))
    except (OSError, TypeError, ValueError) as problem:
        raise OptionRefused(f"{REGISTRY_PREFIX}*: {problem}") from None
