"""Encoding of the cluster in the store: one key per object, JSON with a format version.

A newer, unknown format is refused. From format 2 on a value ends with a checksum over its key and
itself, so a value that was changed, or that is under another key, is refused too. Values of
format 1 have none: they are accepted only from a store whose `cluster` key is of format 1 as well.
A flipped bit does not turn a new store into such an old one: its checksums are there, and wrong.

Up to format 2 a topic's value held its partitions; since format 3 each has a key of its own.
`read_image` reads all formats, and `ClusterState.open` rewrites what is older.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.cluster.image import ClusterImage, PartitionMissing
from ottla.cluster.store import ChangeBatch, Entry, Snapshot
from ottla.cluster.values import (
    BROKER_PREFIX,
    BROKER_SETTINGS_KEY,
    BROKER_SETTINGS_PREFIX,
    CATALOG_KEY,
    CLUSTER_KEY,
    GROUP_SETTINGS_PREFIX,
    MAKING_PREFIX,
    MEMBER_PREFIX,
    NEVER_RETIRED,
    PARTITION_PREFIX,
    READY_PREFIX,
    SUSPICION_PREFIX,
    TOMBSTONE_PREFIX,
    TOPIC_PREFIX,
    BrokerImage,
    Catalog,
    Change,
    ClusterId,
    ClusterIdentity,
    Making,
    Member,
    PartitionImage,
    Ready,
    StoredSettings,
    StoredTopic,
    Suspicion,
    Tombstone,
    Value,
    partition_key,
    topic_key,
)
from ottla.errors import UsageRefused
from ottla.model import (
    NO_EPOCH,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    ProducerId,
    format_uuid,
    parse_uuid,
)
from ottla.records.crc import crc32c

FORMAT: Final = 3
WHOLE_TOPICS_FORMAT: Final = 2  # the last one that kept partitions in their topic's value
UNCHECKED_FORMAT: Final = 1  # the last one without checksums

PRODUCER_IDS_KEY: Final = "producer-ids"

_DRAINING: Final = "draining"  # the state that is wanted of a member; without one it is active

_JSON: Final = json.JSONEncoder(separators=(",", ":"))
_CHECKSUM_FIELD: Final = re.compile(rb',"crc32c":"([0-9a-f]{8})"}\Z')
_PREFIXES: Final = (
    TOPIC_PREFIX,
    PARTITION_PREFIX,
    MAKING_PREFIX,
    TOMBSTONE_PREFIX,
    BROKER_PREFIX,
    READY_PREFIX,
    MEMBER_PREFIX,
    SUSPICION_PREFIX,
    BROKER_SETTINGS_PREFIX,
    GROUP_SETTINGS_PREFIX,
)
_KEYS: Final = frozenset({BROKER_SETTINGS_KEY, CLUSTER_KEY, CATALOG_KEY})


class ValueDamaged(UsageRefused):
    """A value in the store differs from what was written, so it cannot be used."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            f"the coordination store is damaged: the value of {key!r} {reason}; restore a copy"
            " of the store, or run `ottla log accept-store DIR` to recover without this key"
        )
        self.key = key
        self.reason = reason


def read_image(snapshot: Snapshot) -> ClusterImage:
    """The whole store as an image, or `ValueDamaged` if the value of a known key is."""
    entries = modern_entries(snapshot)
    for entry in entries:
        if entry.key == PRODUCER_IDS_KEY:
            decode_next_producer_id(entry.value)
    written = (
        (Change(entry.key, decode(entry.key, entry.value)), entry.mod_revision)
        for entry in entries
        if _is_known(entry.key)
    )
    try:
        return ClusterImage.load(written, snapshot.revision)
    except PartitionMissing as missing:
        raise _lacks_partition(missing) from missing


def read_sound(snapshot: Snapshot) -> tuple[ClusterImage, dict[str, ValueDamaged]]:
    """The image of the intact keys of a store, and the damage of each other key.

    A topic of which a partition is damaged or missing counts as damaged too.
    """
    damaged: dict[str, ValueDamaged] = {}
    is_checked = not _is_unchecked_store(snapshot)
    for entry in snapshot.entries:
        try:
            if entry.key == PRODUCER_IDS_KEY:
                decode_next_producer_id(entry.value, is_checked=is_checked)
            elif _is_known(entry.key):
                decode_any(entry, is_checked=is_checked)
        except ValueDamaged as problem:
            damaged[entry.key] = problem
    while True:
        sound = tuple(entry for entry in snapshot.entries if entry.key not in damaged)
        try:
            return read_image(Snapshot(snapshot.revision, sound)), damaged
        except ValueDamaged as problem:
            if problem.key in damaged:
                raise
            damaged[problem.key] = problem


def outdated_entries(snapshot: Snapshot) -> list[Entry]:
    """The entries of an older format to rewrite, `cluster` last; none in a store of today's.

    Until `cluster` is of today's format, a crash on the way leaves a store that is read as before.
    """
    identity = [entry for entry in snapshot.entries if entry.key == CLUSTER_KEY]
    if not identity or _format_of(identity[0].value) == FORMAT:
        return []
    others = [entry for entry in snapshot.entries if entry.key != CLUSTER_KEY]
    return [entry for entry in (*others, *identity) if _format_of(entry.value) != FORMAT]


def modern_entries(snapshot: Snapshot) -> list[Entry]:
    """All entries in today's format and in the order of their keys, whatever they are in."""
    if not outdated_entries(snapshot):
        return list(snapshot.entries)
    is_checked = not _is_unchecked_store(snapshot)
    modern: dict[str, Entry] = {}
    for entry in snapshot.entries:
        for one in modernized(entry, is_checked=is_checked):
            modern[one.key] = one
    return [modern[key] for key in sorted(modern)]


def modernized(entry: Entry, *, is_checked: bool) -> list[Entry]:
    """A value of an older format as today's, partitions before their topic.

    Registrations are left out: they were under leases, and every broker registers anew.
    """
    if _format_of(entry.value) == FORMAT or not (
        _is_known(entry.key) or entry.key == PRODUCER_IDS_KEY
    ):
        return [entry]
    if entry.key.startswith(BROKER_PREFIX):
        return []
    fields = {**_load(entry.key, entry.value, is_checked=is_checked), "format": FORMAT}
    split: dict[str, dict[str, Any]] = {entry.key: fields}
    if entry.key.startswith(TOPIC_PREFIX):
        split = _split_topic(entry.key, fields)
    return [Entry(key, _dump(key, value), entry.mod_revision) for key, value in split.items()]


def is_checked_store(snapshot: Snapshot) -> bool:
    """True if every value of the store has a checksum."""
    return not _is_unchecked_store(snapshot)


def _split_topic(key: str, fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    topic_id = parse_uuid(fields["id"])
    split: dict[str, dict[str, Any]] = {
        partition_key(topic_id, index): {"format": FORMAT, **partition}
        for index, partition in enumerate(fields["partitions"])
    }
    split[key] = {**fields, "partitions": len(fields["partitions"])}
    return split


def _is_unchecked_store(snapshot: Snapshot) -> bool:
    return any(
        entry.key == CLUSTER_KEY and _format_of(entry.value) == UNCHECKED_FORMAT
        for entry in snapshot.entries
    )


def _format_of(data: bytes) -> int | None:
    fields = _parse(data)
    found = None if fields is None else fields.get("format")
    return found if isinstance(found, int) else None


def _lacks_partition(missing: PartitionMissing) -> ValueDamaged:
    key = topic_key(missing.topic.name)
    return ValueDamaged(key, f"counts partition {missing.index}, which is missing")


def read_changes(
    batch: ChangeBatch, known: Mapping[str, tuple[bytes, Value]] | None = None
) -> Iterable[Change]:
    """The changes of the image in one revision of the store.

    `known` are values that need not be decoded, by key, each with the bytes that it is encoded as.
    """
    own = known or {}
    for key, data in ((change.key, change.value) for change in batch.changes):
        if data is None:
            if _is_known(key):
                yield Change(key, None)
        elif key in own and own[key][0] == data:
            yield Change(key, own[key][1])
        elif _is_known(key):
            yield Change(key, decode(key, data))


def encode(key: str, value: Value) -> bytes:
    """A value as stored under this key."""
    return _dump(key, {"format": FORMAT, **_fields(value)})


def decode(key: str, data: bytes) -> Value:
    """The inverse of `encode`; the key determines the kind of value."""
    return _read(key, _load(key, data, is_checked=True))


def decode_any(entry: Entry, *, is_checked: bool) -> None:
    """Raises ValueDamaged unless the value can be read, in whatever format it is."""
    for one in modernized(entry, is_checked=is_checked):
        decode(one.key, one.value)


def _read(key: str, fields: Mapping[str, Any]) -> Value:
    prefix, _, name = key.rpartition("/") if "/" in key else (key, "", "")
    if key.startswith(TOPIC_PREFIX):
        return _read_topic(key.removeprefix(TOPIC_PREFIX), fields)
    if key.startswith(PARTITION_PREFIX):
        return _read_partition(fields)
    if key.startswith((BROKER_PREFIX, READY_PREFIX, MEMBER_PREFIX, SUSPICION_PREFIX)):
        return _read_broker(prefix + "/", BrokerId(int(name)), fields)
    if key.startswith(MAKING_PREFIX):
        return Making(parse_uuid(name), fields["topic"], fields["partitions"])
    if key.startswith(TOMBSTONE_PREFIX):
        return _read_tombstone(name, fields)
    if key == BROKER_SETTINGS_KEY or key.startswith(
        (BROKER_SETTINGS_PREFIX, GROUP_SETTINGS_PREFIX)
    ):
        return StoredSettings(fields["config"])
    if key == CLUSTER_KEY:
        return ClusterIdentity(ClusterId(fields["id"]))
    assert key == CATALOG_KEY, key
    return Catalog()


def encode_next_producer_id(next_id: ProducerId) -> bytes:
    """The first producer id that is not allocated yet."""
    return _dump(PRODUCER_IDS_KEY, {"format": FORMAT, "next": next_id})


def decode_next_producer_id(data: bytes, *, is_checked: bool = True) -> ProducerId:
    """The inverse of `encode_next_producer_id`."""
    return ProducerId(_load(PRODUCER_IDS_KEY, data, is_checked=is_checked)["next"])


def _is_known(key: str) -> bool:
    return key.startswith(_PREFIXES) or key in _KEYS


def _fields(value: Value) -> dict[str, Any]:
    match value:
        case StoredTopic():
            return {
                "id": format_uuid(value.id),
                "internal": value.is_internal,
                "config": dict(value.config),
                "partitions": value.partition_count,
                **({} if value.listed_count is None else {"listed": value.listed_count}),
            }
        case PartitionImage():
            return _partition_fields(value)
        case Making():
            return {"topic": value.topic, "partitions": value.partition_count}
        case Tombstone():
            return {
                "topic": value.topic,
                "partitions": value.partition_count,
                "brokers": value.brokers,
            }
        case BrokerImage() | Ready() | Member() | Suspicion():
            return _broker_fields(value)
        case StoredSettings():
            return {"config": dict(value.values)}
        case ClusterIdentity():
            return {"id": value.id}
        case Catalog():
            return {}


def _broker_fields(value: BrokerImage | Ready | Member | Suspicion) -> dict[str, Any]:
    match value:
        case BrokerImage():
            return {
                "listeners": [
                    {"name": name, "host": host, "port": port}
                    for name, (host, port) in value.listeners.items()
                ],
                "rack": value.rack,
                "machine": value.machine,
                "token": value.token.hex(),
                "features": sorted(value.features),
            }
        case Ready():
            return {"epoch": value.epoch}
        case Member():
            return {
                "epoch": value.epoch,
                "rack": value.rack,
                "machine": value.machine,
                **({"wanted": _DRAINING} if value.is_draining else {}),
                **({"generation": value.generation} if value.generation else {}),
            }
        case Suspicion():
            return {"epoch": value.epoch, "by": value.by}


def _read_broker(
    prefix: str, broker: BrokerId, fields: Mapping[str, Any]
) -> BrokerImage | Ready | Member | Suspicion:
    if prefix == READY_PREFIX:
        return Ready(broker, fields["epoch"])
    if prefix == SUSPICION_PREFIX:
        return Suspicion(broker, fields["epoch"], tuple(fields["by"]))
    if prefix == MEMBER_PREFIX:
        is_draining = fields.get("wanted") == _DRAINING
        return Member(
            broker,
            fields["epoch"],
            fields["rack"],
            fields["machine"],
            is_draining,
            fields.get("generation", 0),
        )
    listeners = {one["name"]: Endpoint(one["host"], one["port"]) for one in fields["listeners"]}
    return BrokerImage(
        broker,
        listeners,
        fields["rack"],
        fields["machine"],
        bytes.fromhex(fields["token"]),
        features=frozenset(fields.get("features", ())),
    )


def _partition_fields(partition: PartitionImage) -> dict[str, Any]:
    """The fields of a partition; those of a move or a seal only if there is or was one."""
    moves = {"adding": partition.adding, "removing": partition.removing}
    seals = {
        "forwarded_to": partition.forwarded_to,
        "reopened_epoch": partition.reopened_epoch,
        "retired_ms": partition.retired_ms,
    }
    return {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "partition_epoch": partition.partition_epoch,
        "elr": partition.elr,
        "unclean_epoch": partition.unclean_epoch,
        "new": partition.is_new,
        **{name: brokers for name, brokers in moves.items() if brokers},
        **(seals if partition.forwarded_to else {}),
    }


def _read_topic(name: str, fields: Mapping[str, Any]) -> StoredTopic:
    return StoredTopic(
        name=name,
        id=parse_uuid(fields["id"]),
        partition_count=fields["partitions"],
        config=fields["config"],
        is_internal=fields["internal"],
        listed_count=fields.get("listed"),
    )


def _read_partition(fields: Mapping[str, Any]) -> PartitionImage:
    return PartitionImage(
        leader=fields["leader"],
        leader_epoch=LeaderEpoch(fields["leader_epoch"]),
        replicas=tuple(fields["replicas"]),
        isr=tuple(fields["isr"]),
        partition_epoch=fields["partition_epoch"],
        # Not in values that were written before there were replicas.
        elr=tuple(fields.get("elr", ())),
        unclean_epoch=LeaderEpoch(fields.get("unclean_epoch", NO_EPOCH)),
        is_new=fields.get("new", False),
        adding=tuple(fields.get("adding", ())),
        removing=tuple(fields.get("removing", ())),
        forwarded_to=tuple(fields.get("forwarded_to", ())),
        reopened_epoch=LeaderEpoch(fields.get("reopened_epoch", NO_EPOCH)),
        retired_ms=fields.get("retired_ms", NEVER_RETIRED),
    )


def _read_tombstone(topic_id: str, fields: Mapping[str, Any]) -> Tombstone:
    return Tombstone(
        parse_uuid(topic_id), fields["topic"], fields["partitions"], tuple(fields["brokers"])
    )


def _dump(key: str, fields: Mapping[str, Any]) -> bytes:
    body = _JSON.encode(fields).encode()
    return body[:-1] + b',"crc32c":"%08x"}' % _checksum(key, body)


def _checksum(key: str, body: bytes) -> int:
    return crc32c(key.encode() + b"\n" + body)


def _load(key: str, data: bytes, *, is_checked: bool) -> dict[str, Any]:
    found = _CHECKSUM_FIELD.search(data)
    body = data if found is None else data[: found.start()] + b"}"
    fields = _parse(body)
    if found is not None and int(found[1], 16) != _checksum(key, body):
        raise ValueDamaged(key, "does not match its checksum")
    if fields is None or not isinstance(fields.get("format"), int):
        raise ValueDamaged(key, "cannot be read")
    is_unchecked = fields["format"] == UNCHECKED_FORMAT
    if found is None and (is_checked or not is_unchecked) and fields["format"] <= FORMAT:
        raise ValueDamaged(key, "has no checksum")
    if fields["format"] > FORMAT:
        raise UsageRefused(
            f"the coordination store holds {key!r} in format {fields['format']}, this broker reads"
            f" up to {FORMAT}: start it with the newer version of Ottla that wrote the store"
        )
    return fields


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(data.decode())  # from a string: bytes are searched for an encoding
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
