"""Encoding of the cluster in the store: one key per object, JSON with a format version.

A newer, unknown format is refused. From format 2 on a value ends with a checksum over its key and
itself, so a value that was changed, or that is under another key, is refused too. Values of
format 1 have none: they are accepted only from a store whose `cluster` key is of format 1 as well,
and `ClusterState.open` rewrites them. The
digits 1 and 2 differ in two bits, so one flipped bit does not turn a new store into an old one.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.cluster.image import (
    BROKER_PREFIX,
    BROKER_SETTINGS_KEY,
    BROKER_SETTINGS_PREFIX,
    CATALOG_KEY,
    CLUSTER_KEY,
    TOMBSTONE_PREFIX,
    TOPIC_PREFIX,
    BrokerImage,
    BrokerSettings,
    Catalog,
    Change,
    ClusterId,
    ClusterIdentity,
    ClusterImage,
    PartitionImage,
    Tombstone,
    TopicImage,
    Value,
)
from ottla.cluster.store import ChangeBatch, Entry, Snapshot
from ottla.errors import UsageRefused
from ottla.model import (
    BrokerId,
    Endpoint,
    LeaderEpoch,
    ProducerId,
    format_uuid,
    parse_uuid,
)
from ottla.records.crc import crc32c

FORMAT: Final = 2
UNCHECKED_FORMAT: Final = 1  # the last one without checksums

PRODUCER_IDS_KEY: Final = "producer-ids"

_CHECKSUM_FIELD: Final = re.compile(rb',"crc32c":"([0-9a-f]{8})"}\Z')


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
    is_checked = not unchecked_entries(snapshot)
    for entry in snapshot.entries:
        if entry.key == PRODUCER_IDS_KEY:
            decode_next_producer_id(entry.value, is_checked=is_checked)
    written = (
        (
            Change(entry.key, decode(entry.key, entry.value, is_checked=is_checked)),
            entry.mod_revision,
        )
        for entry in snapshot.entries
        if _is_known(entry.key)
    )
    return ClusterImage.load(written, snapshot.revision)


def read_sound(snapshot: Snapshot) -> tuple[ClusterImage, dict[str, ValueDamaged]]:
    """The image of the intact keys of a store, and the damage of each other key."""
    damaged: dict[str, ValueDamaged] = {}
    is_checked = not unchecked_entries(snapshot)
    for entry in snapshot.entries:
        try:
            if entry.key == PRODUCER_IDS_KEY:
                decode_next_producer_id(entry.value, is_checked=is_checked)
            elif _is_known(entry.key):
                decode(entry.key, entry.value, is_checked=is_checked)
        except ValueDamaged as problem:
            damaged[entry.key] = problem
    sound = tuple(entry for entry in snapshot.entries if entry.key not in damaged)
    return read_image(Snapshot(snapshot.revision, sound)), damaged


def unchecked_entries(snapshot: Snapshot) -> list[Entry]:
    """The entries of a format 1 store to rewrite, `cluster` last; none in a newer one.

    Until `cluster` is of format 2, a crash on the way leaves a store that is read as before.
    """
    identity = [entry for entry in snapshot.entries if entry.key == CLUSTER_KEY]
    if not identity or not _is_unchecked(identity[0].value):
        return []
    others = [entry for entry in snapshot.entries if entry.key != CLUSTER_KEY]
    return [entry for entry in (*others, *identity) if _is_unchecked(entry.value)]


def add_checksum(entry: Entry) -> bytes:
    """A value of format 1 in the current format."""
    fields = _load(entry.key, entry.value, is_checked=False)
    return _dump(entry.key, {**fields, "format": FORMAT})


def _is_unchecked(data: bytes) -> bool:
    fields = _parse(data)
    return fields is not None and fields.get("format") == UNCHECKED_FORMAT


def read_changes(batch: ChangeBatch) -> Iterable[Change]:
    """The changes of the image in one revision of the store."""
    for change in batch.changes:
        if _is_known(change.key):
            value = None if change.value is None else decode(change.key, change.value)
            yield Change(change.key, value)


def encode(key: str, value: Value) -> bytes:
    """A value as stored under this key."""
    return _dump(key, {"format": FORMAT, **_fields(value)})


def decode(key: str, data: bytes, *, is_checked: bool = True) -> Value:
    """The inverse of `encode`; the key determines the kind of value."""
    fields = _load(key, data, is_checked=is_checked)
    if key.startswith(TOPIC_PREFIX):
        return _read_topic(key.removeprefix(TOPIC_PREFIX), fields)
    if key.startswith(TOMBSTONE_PREFIX):
        return _read_tombstone(key.removeprefix(TOMBSTONE_PREFIX), fields)
    if key.startswith(BROKER_PREFIX):
        endpoint = Endpoint(fields["host"], fields["port"])
        broker_id = BrokerId(int(key.removeprefix(BROKER_PREFIX)))
        return BrokerImage(broker_id, endpoint, fields["rack"])
    if key == BROKER_SETTINGS_KEY or key.startswith(BROKER_SETTINGS_PREFIX):
        return BrokerSettings(fields["config"])
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
    prefixes = (TOPIC_PREFIX, TOMBSTONE_PREFIX, BROKER_PREFIX, BROKER_SETTINGS_PREFIX)
    return key.startswith(prefixes) or key in {BROKER_SETTINGS_KEY, CLUSTER_KEY, CATALOG_KEY}


def _fields(value: Value) -> dict[str, Any]:
    match value:
        case TopicImage():
            return {
                "id": format_uuid(value.id),
                "internal": value.is_internal,
                "config": dict(value.config),
                "partitions": [_partition_fields(partition) for partition in value.partitions],
            }
        case Tombstone():
            return {
                "topic": value.topic,
                "partitions": value.partition_count,
                "brokers": value.brokers,
            }
        case BrokerImage():
            host, port = value.endpoint
            return {"host": host, "port": port, "rack": value.rack}
        case BrokerSettings():
            return {"config": dict(value.values)}
        case ClusterIdentity():
            return {"id": value.id}
        case Catalog():
            return {}


def _partition_fields(partition: PartitionImage) -> dict[str, Any]:
    return {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "partition_epoch": partition.partition_epoch,
    }


def _read_topic(name: str, fields: Mapping[str, Any]) -> TopicImage:
    return TopicImage(
        name=name,
        id=parse_uuid(fields["id"]),
        partitions=tuple(
            PartitionImage(
                leader=partition["leader"],
                leader_epoch=LeaderEpoch(partition["leader_epoch"]),
                replicas=tuple(partition["replicas"]),
                isr=tuple(partition["isr"]),
                partition_epoch=partition["partition_epoch"],
            )
            for partition in fields["partitions"]
        ),
        config=fields["config"],
        is_internal=fields["internal"],
    )


def _read_tombstone(topic_id: str, fields: Mapping[str, Any]) -> Tombstone:
    return Tombstone(
        parse_uuid(topic_id), fields["topic"], fields["partitions"], tuple(fields["brokers"])
    )


def _dump(key: str, fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields, separators=(",", ":")).encode()
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
        fields = json.loads(data)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
