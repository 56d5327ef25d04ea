"""What the store holds is readable, says its format, and is read back as it was."""

import json

import pytest

from ottla.cluster.image import (
    BrokerImage,
    BrokerSettings,
    Catalog,
    ClusterId,
    ClusterIdentity,
    PartitionImage,
    TopicImage,
    Value,
)
from ottla.cluster.layout import (
    decode,
    decode_next_producer_id,
    encode,
    encode_next_producer_id,
    read_changes,
    read_image,
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/orders", TOPIC),
        ("brokers/7", BrokerImage(BrokerId(7), Endpoint("::1", 9092), "rack-a")),
        ("brokers/7", BrokerImage(BrokerId(7), Endpoint("host", 9092))),
        ("settings/brokers", BrokerSettings({"log.retention.ms": "1"})),
        ("cluster", ClusterIdentity(ClusterId("it"))),
        ("catalog", Catalog()),
    ],
)
def test_a_value_is_read_back_as_it_was_written(key: str, value: Value) -> None:
    assert decode(key, encode(value)) == value


def test_a_topic_is_written_so_that_people_can_read_it() -> None:
    assert json.loads(encode(TOPIC)) == {
        "format": 1,
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
    with pytest.raises(UsageRefused, match="'topics/orders' in format 2"):
        decode("topics/orders", b'{"format":2}')


def test_an_image_is_read_from_a_snapshot_with_the_revision_of_each_key() -> None:
    broker = BrokerImage(BrokerId(1), Endpoint("host", 1))
    image = read_image(
        Snapshot(
            Revision(9),
            (
                Entry("brokers/1", encode(broker), Revision(4)),
                Entry("topics/orders", encode(TOPIC), Revision(7)),
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
