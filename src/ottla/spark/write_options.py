"""All options of a writer of `format("ottla")`: those of Spark's Kafka connector, and ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.model import topic_name_problem
from ottla.records.compression import Codec
from ottla.spark.broker_options import BrokerOptions, parse_broker_options
from ottla.spark.column_options import ValueFormat, check_value_format
from ottla.spark.option_reader import OptionReader, OptionRefused
from ottla.spark.registry_options import RegistryOptions, parse_registry, parse_subject

TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000  # the default limit of brokers
_WRITE_NAMES: Final = (
    "topic",
    "includeHeaders",
    "delivery",
    "transactionTimeout",
    "acceptBatch",
    "brokerAddressMap",
    "valueFormat",
    "valueSchema",
    "valueSubject",
)
# Options that Spark adds to those of a stream's sink.
SPARK_SINK_OPTIONS: Final = ("checkpointLocation", "queryName", "outputMode")


class Delivery(StrEnum):
    """The delivery guarantee of a writer after a crash."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """How values are encoded for a schema registry."""

    value_format: ValueFormat
    registry: RegistryOptions
    subject: str
    schema: str | None = None  # registered under the subject; without it, the subject's newest


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options of a writer, checked."""

    brokers: BrokerOptions
    topic: str | None = None  # for all rows, whatever their column says
    codec: Codec = Codec.NONE
    delivery: Delivery = Delivery.EXACTLY_ONCE
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    accepted_batch: int | None = None  # declared written by its user, whatever its content is now
    encoding: EncodingOptions | None = None


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `write` or `writeStream`; raises `OptionRefused`."""
    options = OptionReader(raw, (*_WRITE_NAMES, *SPARK_SINK_OPTIONS))
    options.refuse_unknown()
    if options.text("kafka.transactional.id") is not None:
        raise OptionRefused(
            "kafka.transactional.id is not supported: every task attempt has its own, made of"
            " its query and its partition"
        )
    options.truth(
        "includeHeaders", False
    )  # accepted as in Spark's connector; a column of headers is enough
    topic = options.text("topic")
    if topic is not None and (problem := topic_name_problem(topic)):
        raise OptionRefused(f"topic={topic}: {problem}")
    names = tuple(codec.name.lower() for codec in Codec)
    options.choose("kafka.acks", ("all", "-1"), "all")  # retries rely on it
    return WriteOptions(
        brokers=parse_broker_options(raw),
        topic=topic,
        codec=Codec.named(options.choose("kafka.compression.type", names, "none")),
        delivery=Delivery(options.choose("delivery", tuple(Delivery), Delivery.EXACTLY_ONCE)),
        transaction_timeout_ms=_transaction_timeout_ms(options),
        accepted_batch=parse_accepted_batch(options.text("acceptBatch")),
        encoding=_encoding(options, parse_registry(raw), topic),
    )


def _encoding(
    options: OptionReader, registry: RegistryOptions | None, topic: str | None
) -> EncodingOptions | None:
    if registry is None:
        for name in ("valueFormat", "valueSchema", "valueSubject"):
            if options.text(name) is not None:
                raise OptionRefused(
                    f"{name} is for values of a schema registry: give schema.registry.url, or"
                    " write a value of STRING or BINARY without it"
                )
        return None
    value_format = ValueFormat(
        options.choose("valueFormat", tuple(ValueFormat), ValueFormat.BINARY)
    )
    check_value_format(options, value_format, registry)
    return EncodingOptions(
        value_format=value_format,
        registry=registry,
        subject=parse_subject(options, () if topic is None else (topic,)),
        schema=options.text("valueSchema"),
    )


def parse_accepted_batch(text: str | None) -> int | None:
    """Parse the number of a micro-batch that its user declares written."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise OptionRefused(f"acceptBatch={text} is not the number of a micro-batch")
    return int(text)


def _transaction_timeout_ms(options: OptionReader) -> int:
    name = next(iter(options.given(("transactionTimeout", "kafka.transaction.timeout.ms"))), None)
    if name is None:
        return TRANSACTION_TIMEOUT_MS
    timeout_ms = options.duration_ms(name, TRANSACTION_TIMEOUT_MS)
    if not 1 <= timeout_ms < 2**31:
        raise OptionRefused(f"{name}={options.text(name)} is not between 1 ms and 24 days")
    return timeout_ms
