"""How the cluster is written into the store: one key per thing, readable JSON, a format version.

A value that a newer Ottla wrote in a format unknown here is refused, not guessed at.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.cluster.image import (
    BROKER_PREFIX,
    BROKER_SETTINGS_KEY,
    BROKER_SETTINGS_PREFIX,
    CATALOG_KEY,
    CLUSTER_KEY,
    TOPIC_PREFIX,
    BrokerImage,
    BrokerSettings,
    Catalog,
    Change,
    ClusterId,
    ClusterIdentity,
    ClusterImage,
    PartitionImage,
    TopicImage,
    Value,
)
from ottla.cluster.store import ChangeBatch, Snapshot
from ottla.errors import UsageRefused
from ottla.model import (
    BrokerId,
    Endpoint,
    LeaderEpoch,
    ProducerId,
    format_uuid,
    parse_uuid,
)

FORMAT: Final = 1

PRODUCER_IDS_KEY: Final = "producer-ids"


def read_image(snapshot: Snapshot) -> ClusterImage:
    """The whole store as an image."""
    written = (
        (Change(entry.key, decode(entry.key, entry.value)), entry.mod_revision)
        for entry in snapshot.entries
        if _is_known(entry.key)
    )
    return ClusterImage.load(written, snapshot.revision)


def read_changes(batch: ChangeBatch) -> Iterable[Change]:
    """What one revision of the store means for the image."""
    for change in batch.changes:
        if _is_known(change.key):
            value = None if change.value is None else decode(change.key, change.value)
            yield Change(change.key, value)


def encode(value: Value) -> bytes:
    """A value as the store keeps it."""
    return _dump(_fields(value))


def decode(key: str, data: bytes) -> Value:
    """The inverse of `encode`; the key says which kind of value it is."""
    fields = _load(key, data)
    if key.startswith(TOPIC_PREFIX):
        return _read_topic(key.removeprefix(TOPIC_PREFIX), fields)
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
    """The first producer id that has not been given out."""
    return _dump({"next": next_id})


def decode_next_producer_id(data: bytes) -> ProducerId:
    """The inverse of `encode_next_producer_id`."""
    return ProducerId(_load(PRODUCER_IDS_KEY, data)["next"])


def _is_known(key: str) -> bool:
    return key.startswith((TOPIC_PREFIX, BROKER_PREFIX, BROKER_SETTINGS_PREFIX)) or key in {
        BROKER_SETTINGS_KEY,
        CLUSTER_KEY,
        CATALOG_KEY,
    }


def _fields(value: Value) -> dict[str, Any]:
    match value:
        case TopicImage():
            return {
                "id": format_uuid(value.id),
                "internal": value.is_internal,
                "config": dict(value.config),
                "partitions": [_partition_fields(partition) for partition in value.partitions],
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


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def _load(key: str, data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data)
    if fields["format"] > FORMAT:
        raise UsageRefused(
            f"the coordination store holds {key!r} in format {fields['format']}, this broker reads"
            f" up to {FORMAT}: start it with the newer version of Ottla that wrote the store"
        )
    return fields
