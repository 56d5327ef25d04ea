"""The largest requests that fit, of every API that a broker serves, in every field that repeats.

A request is made from its schema: one path to an array, a string or bytes is filled until a limit
is reached, and what stands around it names things that exist, or things that do not. So an API that
is new is measured without anybody remembering it.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from fakes import build
from hostile.attacked_broker import MIB, AttackedBroker, wait_until
from hostile.wire import CLIENT_ID, framed, produce_request, raw_client, served_layouts
from ottla.config import BrokerConfig
from ottla.errors import ErrorCode
from ottla.model import TopicPartition, Uuid
from ottla.protocol.api import APIS, ApiKey, RequestHeader, key_of, write_request_header
from ottla.protocol.codec import encode
from ottla.protocol.codegen import Layout
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.schema import Array, Fixed, Kind, Sized, records, string, uuid

WIDE: Final = "wide"  # a topic of many partitions
WIDE_PARTITIONS: Final = 1000
GROUP: Final = "readers"  # a group with an offset for each of them
TRANSACTIONAL_ID: Final = "writer"  # with a transaction open in each of them
STRING_BYTES_MAX: Final = 2**15 - 1
BATCHES_MAX: Final = 20_000  # of one Produce

_UNKNOWN: Final = "@@@@@@@@"  # a name that becomes another in every element
_ANOTHER: Final = 0x40404142  # a partition that does
_LAST: Final = (  # what makes and destroys
    ApiKey.CREATE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DELETE_TOPICS,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What exists in the broker before it is attacked."""

    wide_id: Uuid
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Limit:
    """How large a request is made: until either number is reached."""

    name: str
    bytes_max: int
    elements_max: int
    is_allowed: bool = True


@dataclass(frozen=True, slots=True)
class LargestRequest:
    """One request: what it is, and a function that makes its frame."""

    key: ApiKey
    version: int
    name: str
    limit: Limit
    make: Callable[[], bytes]


def prepare(broker: AttackedBroker) -> Scene:
    """Make the topic, its records, the group and the transaction that requests can name."""
    with raw_client(broker) as client:
        wide = CreatableTopic(name=WIDE, num_partitions=WIDE_PARTITIONS, replication_factor=1)
        made = client.ask(CreateTopicsRequest(topics=[wide], timeout_ms=60_000), 5)
        assert made.topics[0].error_code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        for _ in range(20):
            batch = bytes(build.batch(count=100, value=b"v" * 100))
            client.ask(produce_request(TopicPartition(WIDE, 0), batch), 8)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=WIDE)])
        wide_id = client.ask(asked, 12).topics[0].topic_id
        for key_type, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
            client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4)
        partitions = [
            OffsetCommitRequestPartition(partition_index=n, committed_offset=0)
            for n in range(WIDE_PARTITIONS)
        ]
        commit = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=WIDE, partitions=partitions)],
        )
        # A coordinator may still be reading its log.
        wait_until(lambda: not client.ask(commit, 8).topics[0].partitions[0].error_code)
        init = InitProducerIdRequest(
            transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=900_000
        )
        wait_until(lambda: not client.ask(init, 4).error_code)
        producer = client.ask(init, 4)
        topic = AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(WIDE_PARTITIONS)))
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TRANSACTIONAL_ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[topic],
        )
        client.ask(add, 3)
        return Scene(wide_id, producer.producer_id, producer.producer_epoch)


def largest_requests(
    broker: AttackedBroker, scene: Scene, settings: BrokerConfig | None = None
) -> list[LargestRequest]:
    """Every request of the newest and the oldest version, each path filled in several ways.

    `settings` has the limits that the broker was started with.
    """
    limits = settings or BrokerConfig()
    newest = {key_of(one.message_class): one.version for one in served_layouts(broker)}
    oldest = {key_of(one.message_class): one.version for one in reversed(served_layouts(broker))}
    found = []
    for key, version in newest.items():
        found += list(_of_version(key, version, scene, limits))
        if oldest[key] != version:
            found += list(_of_version(key, oldest[key], scene, limits))
    order = {key: number for number, key in enumerate(_LAST)}
    return sorted(found, key=lambda one: order.get(one.key, -1))


def _of_version(
    key: ApiKey, version: int, scene: Scene, settings: BrokerConfig
) -> Iterator[LargestRequest]:
    layout = Layout(APIS[key].request_class, version)
    for path, kind in _paths(layout, layout.message_class):
        for fill in _Fill.all_for(kind, scene):
            for limit in fill.limits(key, settings):
                name = f"{APIS[key].name} v{version} {'/'.join(path)}: {fill.name}, {limit.name}"
                maker = _Maker(key, layout, path, fill, limit)
                yield LargestRequest(key, version, name, limit, maker)


def _paths(
    layout: Layout, struct_class: type, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Kind]]:
    """The fields that can be long: arrays, also within others, strings and bytes.

    Not arrays that are tagged: a tag's length stands before them, and would have to grow as well.
    """
    for item in (*layout.ordinary(struct_class), *layout.tagged(struct_class)):
        path, kind = (*before, item.name), item.wire.kind
        if isinstance(kind, Array) and item.wire.tag is not None:
            continue
        if isinstance(kind, Array | Sized):
            yield path, kind
        element = kind.element if isinstance(kind, Array) else kind
        if isinstance(element, type):
            yield from _paths(layout, element, path)


@dataclass(frozen=True, slots=True)
class _Fill:
    """What stands in a request besides its size."""

    name: str
    scene: Scene
    kind: Kind
    is_known: bool = True  # what is named exists
    is_distinct: bool = False  # and is another in every element

    @classmethod
    def all_for(cls, kind: Kind, scene: Scene) -> "list[_Fill]":
        if isinstance(kind, Sized):
            return [cls("long", scene, kind)]
        return [
            cls("the same", scene, kind),
            cls("known", scene, kind, is_distinct=True),
            cls("unknown", scene, kind, is_known=False, is_distinct=True),
        ]

    def limits(self, key: ApiKey, settings: BrokerConfig) -> list[Limit]:
        """As large as may be; and of one kind also larger than that."""
        elements_max = settings.request_elements_max
        bytes_max = settings.plain_request_bytes_max
        if key is ApiKey.PRODUCE:
            bytes_max, elements_max = settings.request_bytes_max, BATCHES_MAX
        largest = Limit("as many as may be", bytes_max, elements_max)
        if isinstance(self.kind, Sized) or self.name != "the same":
            return [largest]
        many = Limit("as many as fit", bytes_max, 1 << 30, is_allowed=False)
        huge = Limit("a whole frame", settings.request_bytes_max, 1 << 30, is_allowed=False)
        return [largest, many, huge]

    def text(self, name: str, path: tuple[str, ...], key: ApiKey) -> str:
        if name == "name" and path[-1:] == ("configs",):
            return "retention.ms" if self.is_known else _UNKNOWN
        if name in {"value", "protocol_type", "server_assignor"}:
            return {"value": "1000", "protocol_type": "consumer"}.get(name, "uniform")
        if not self.is_known or key is ApiKey.CREATE_TOPICS:
            return _UNKNOWN
        if name in {"group_id", "groups", "group_ids", "groups_names"}:
            return GROUP
        if name == "coordinator_keys":
            return GROUP if not self.is_distinct else _UNKNOWN
        if name in {"transactional_id", "transactional_ids", "v3_and_below_transactional_id"}:
            return TRANSACTIONAL_ID
        if name in {"configuration_keys"}:
            return "retention.ms"
        if name in {"name", "topic", "topic_name", "topic_names", "resource_name"}:
            return WIDE
        if name == "subscribed_topic_names":
            return _UNKNOWN if self.is_distinct else WIDE
        return _UNKNOWN if self.is_distinct else name

    def number(self, name: str) -> int:
        if name in {"partition", "partition_index", "partitions", "partition_indexes", "index"}:
            return _ANOTHER if self.is_distinct else 0
        special = {
            "resource_type": 2,
            "timestamp": 1_700_000_000_050,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_epoch": -1,
            "producer_id": self.scene.producer_id,
            "producer_epoch": self.scene.producer_epoch,
            "v3_and_below_producer_id": self.scene.producer_id,
            "v3_and_below_producer_epoch": self.scene.producer_epoch,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "timeout_ms": 10_000,
            "acks": -1,
            "max_bytes": MIB,
            "partition_max_bytes": MIB,
            "session_epoch": 0,
            "count": 2 * WIDE_PARTITIONS,
            "num_partitions": 1,
            "replication_factor": 1,
            "response_partition_limit": 2000,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "max_num_offsets": 1,
        }
        return special.get(name, 0)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the frame of one request, when it is called and not before: some take 100 MiB."""

    key: ApiKey
    layout: Layout
    path: tuple[str, ...]
    fill: _Fill
    limit: Limit

    def __call__(self) -> bytes:
        head = bytearray()
        write_request_header(head, RequestHeader(self.key, self.layout.version, 1, CLIENT_ID))
        if isinstance(self.fill.kind, Sized):
            size = STRING_BYTES_MAX
            if self.fill.kind is not string:
                size = self.limit.bytes_max - 1024
            return framed(bytes(head) + self._body(size))
        one, two = self._body(1), self._body(2)
        at = next(n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
        size = len(two) - len(one)
        element, behind = one[at + 1 : at + 1 + size], one[at + 1 + size :]
        room = self.limit.bytes_max - len(head) - len(one) - 16
        overhead = 2 + len(self.path)
        per_element = max(_element_count(self.layout, self.path, self.fill), 1)
        number = max(1, min(room // size, (self.limit.elements_max - overhead) // per_element))
        if self.layout.flexible:
            counted = one[:at] + _varint(number + 1)
        else:
            counted = one[: at - 3] + struct.pack(">i", number)
        return framed(bytes(head) + counted + self._elements(element, number) + behind)

    def _elements(self, element: bytes, number: int) -> bytes:
        if not self.fill.is_distinct:
            return element * number
        unknown, another = _UNKNOWN.encode(), struct.pack(">i", _ANOTHER)
        wrap = WIDE_PARTITIONS if self.fill.is_known else 1 << 30
        return b"".join(
            element.replace(unknown, b"%08d" % n).replace(another, struct.pack(">i", n % wrap))
            for n in range(number)
        )

    def _body(self, size: int) -> bytes:
        return encode(self._message(self.layout.message_class, (), size), self.layout.version)

    def _message(self, struct_class: type, before: tuple[str, ...], size: int) -> Any:
        made = struct_class()
        for item in self.layout.ordinary(struct_class):
            path = (*before, item.name)
            is_nullable = self.layout.is_nullable(item)
            setattr(made, item.name, self._value(item.wire.kind, path, size, is_nullable))
        for item in self.layout.tagged(struct_class):
            path = (*before, item.name)
            if self.path[: len(path)] == path:
                setattr(made, item.name, self._value(item.wire.kind, path, size, False))
        return made

    def _value(self, kind: Kind, path: tuple[str, ...], size: int, is_nullable: bool) -> Any:
        is_above = self.path[: len(path)] == path
        match kind:
            case Sized():
                return self._sized(kind, path, size, is_nullable)
            case Array():
                if not is_above and is_nullable and not self.fill.is_distinct:
                    return None
                number = size if path == self.path else 1
                return [self._element(kind.element, path, size) for _ in range(number)]
            case type() as struct_class if not is_nullable or is_above:
                return self._message(struct_class, path, size)
            case Fixed():
                return self._number(kind, path)
            case _:
                return None

    def _sized(self, kind: Sized, path: tuple[str, ...], size: int, is_nullable: bool) -> Any:
        if path == self.path:
            return "x" * size if kind is string else bytes(size)
        if kind is records or (is_nullable and path[-1] not in {"name", "topic_name"}):
            return None
        return self.fill.text(path[-1], path[:-1], self.key) if kind is string else b"bytes"

    def _number(self, kind: Fixed, path: tuple[str, ...]) -> Any:
        if kind is uuid:
            return self.fill.scene.wide_id if self.fill.is_known else b"unknown-topic-id"
        return type(kind.default)(self.fill.number(path[-1]))

    def _element(self, kind: Kind, path: tuple[str, ...], size: int) -> Any:
        if isinstance(kind, type):
            return self._message(kind, path, size)
        if isinstance(kind, Sized):
            return self.fill.text(path[-1], path[:-1], self.key) if kind is string else b"bytes"
        assert isinstance(kind, Fixed)
        return self._number(kind, path)


def _element_count(layout: Layout, path: tuple[str, ...], fill: _Fill) -> int:
    """How many elements one element of the filled array is, with those within it."""
    kind: Kind = layout.message_class
    for name in path:
        struct_class = kind.element if isinstance(kind, Array) else kind
        assert isinstance(struct_class, type)
        present = [*layout.ordinary(struct_class), *layout.tagged(struct_class)]
        kind = next(item.wire.kind for item in present if item.name == name)
    return _nested(layout, kind, fill) if isinstance(kind, Array) else 1


def _nested(layout: Layout, kind: Kind, fill: _Fill) -> int:
    if not isinstance(kind, Array):
        return 0
    if not isinstance(kind.element, type):
        return 1
    return 1 + sum(
        _nested(layout, item.wire.kind, fill)
        for item in layout.ordinary(kind.element)
        if fill.is_distinct or not layout.is_nullable(item)
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    for _ in count():
        if value < 0x80:
            break
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
