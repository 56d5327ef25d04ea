"""What the store holds is readable, says its format, and is read back as it was."""

import json
import re

import pytest

from ottla.cluster.image import (
    BrokerImage,
    BrokerSettings,
    Catalog,
    ClusterId,
    ClusterIdentity,
    PartitionImage,
    Tombstone,
    TopicImage,
    Value,
)
from ottla.cluster.layout import (
    ValueDamaged,
    add_checksum,
    decode,
    decode_next_producer_id,
    encode,
    encode_next_producer_id,
    read_changes,
    read_image,
    unchecked_entries,
)
from ottla.cluster.store import ChangeBatch, Entry, KeyChange, Revision, Snapshot
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint, LeaderEpoch, ProducerId, Uuid

TOPIC = TopicImage(
    name="orders",
    id=Uuid(bytes(range(16))),
    partitions=(
        PartitionImage(
            leader=None,
            leader_epoch=LeaderEpoch(3),
            replicas=(BrokerId(1), BrokerId(2)),
            isr=(BrokerId(2),),
            partition_epoch=5,
        ),
    ),
    config={"retention.ms": "1"},
    is_internal=True,
)

TOMBSTONE = Tombstone(TOPIC.id, "orders", 3, (BrokerId(1), BrokerId(2)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/orders", TOPIC),
        ("brokers/7", BrokerImage(BrokerId(7), Endpoint("::1", 9092), "rack-a")),
        ("brokers/7", BrokerImage(BrokerId(7), Endpoint("host", 9092))),
        ("settings/brokers", BrokerSettings({"log.retention.ms": "1"})),
        ("deleted/AAECAwQFBgcICQoLDA0ODw", TOMBSTONE),
        ("cluster", ClusterIdentity(ClusterId("it"))),
        ("catalog", Catalog()),
    ],
)
def test_a_value_is_read_back_as_it_was_written(key: str, value: Value) -> None:
    assert decode(key, encode(key, value)) == value


def test_a_topic_is_written_so_that_people_can_read_it() -> None:
    fields = json.loads(encode("topics/orders", TOPIC))
    assert re.fullmatch("[0-9a-f]{8}", fields.pop("crc32c"))
    assert fields == {
        "format": 2,
        "id": "AAECAwQFBgcICQoLDA0ODw",
        "internal": True,
        "config": {"retention.ms": "1"},
        "partitions": [
            {
                "leader": None,
                "leader_epoch": 3,
                "replicas": [1, 2],
                "isr": [2],
                "partition_epoch": 5,
            }
        ],
    }


def test_producer_ids_are_read_back() -> None:
    assert decode_next_producer_id(encode_next_producer_id(ProducerId(2000))) == 2000


def test_a_newer_format_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(UsageRefused, match="'topics/orders' in format 3"):
        decode("topics/orders", b'{"format":3}')


def test_an_image_is_read_from_a_snapshot_with_the_revision_of_each_key() -> None:
    broker = BrokerImage(BrokerId(1), Endpoint("host", 1))
    image = read_image(
        Snapshot(
            Revision(9),
            (
                Entry("brokers/1", encode("brokers/1", broker), Revision(4)),
                Entry("topics/orders", encode("topics/orders", TOPIC), Revision(7)),
            ),
        )
    )
    assert image.revision == 9
    assert image.brokers[BrokerId(1)].epoch == 4
    assert image.topics == {"orders": TOPIC}
    assert image.topic_names == {TOPIC.id: "orders"}
    assert image.mod_revisions == {"brokers/1": 4, "topics/orders": 7}


def test_keys_that_do_not_concern_the_image_are_passed_over() -> None:
    unknown = (KeyChange("producer-ids", b"{}"), KeyChange("weather", b"rain"))
    assert list(read_changes(ChangeBatch(Revision(1), unknown))) == []
    entry = Entry("weather", b"rain", Revision(1))
    assert read_image(Snapshot(Revision(1), (entry,))).mod_revisions == {}


OLD_TOPIC = (
    b'{"format":1,"id":"AAECAwQFBgcICQoLDA0ODw","internal":false,"config":{},"partitions":[]}'
)
OLD_CLUSTER = b'{"format":1,"id":"it"}'


def old_store() -> Snapshot:
    """A store as it was written before values had checksums."""
    return Snapshot(
        Revision(5),
        (
            Entry("cluster", OLD_CLUSTER, Revision(1)),
            Entry("producer-ids", b'{"format":1,"next":1000}', Revision(5)),
            Entry("topics/orders", OLD_TOPIC, Revision(4)),
        ),
    )


@pytest.mark.parametrize("bit", range(8))
def test_no_byte_of_a_value_can_change_unnoticed(bit: int) -> None:
    whole = encode("topics/orders", TOPIC)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        for is_checked in (True, False):
            with pytest.raises(ValueDamaged, match="'topics/orders'"):
                decode("topics/orders", bytes(flipped), is_checked=is_checked)


def test_a_value_belongs_to_its_key() -> None:
    with pytest.raises(ValueDamaged, match="'topics/orderz' does not match its checksum"):
        decode("topics/orderz", encode("topics/orders", TOPIC))


def test_a_store_of_old_is_read_once_without_checksums() -> None:
    image = read_image(old_store())
    assert image.cluster_id == "it"
    assert image.topics["orders"].id == TOPIC.id
    assert [entry.key for entry in unchecked_entries(old_store())] == [
        "producer-ids",
        "topics/orders",
        "cluster",
    ]


def test_a_store_that_has_checksums_believes_no_value_without() -> None:
    cluster = Entry("cluster", add_checksum(old_store().entries[0]), Revision(6))
    for entry in old_store().entries[1:]:
        with pytest.raises(ValueDamaged, match=f"'{entry.key}' has no checksum"):
            read_image(Snapshot(Revision(6), (cluster, entry)))


def test_a_value_of_old_is_the_same_with_its_checksum() -> None:
    for entry in old_store().entries[2:]:
        written = decode(entry.key, add_checksum(entry))
        assert written == decode(entry.key, entry.value, is_checked=False)
