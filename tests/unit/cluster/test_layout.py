"""What the store holds is readable, says its format, and is read back as it was."""

import json
import re
from dataclasses import replace

import pytest

from ottla.cluster.layout import (
    ValueDamaged,
    decode,
    decode_any,
    decode_next_producer_id,
    encode,
    encode_next_producer_id,
    is_checked_store,
    modernized,
    outdated_entries,
    read_changes,
    read_image,
    read_sound,
)
from ottla.cluster.store import ChangeBatch, Entry, KeyChange, Revision, Snapshot
from ottla.cluster.values import (
    BrokerImage,
    Catalog,
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
)
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint, LeaderEpoch, ProducerId, Uuid
from ottla.records.crc import crc32c

TOPIC_ID = Uuid(bytes(range(16)))
PARTITION_KEY = "partitions/AAECAwQFBgcICQoLDA0ODw/0"
PARTITION = PartitionImage(
    leader=None,
    leader_epoch=LeaderEpoch(3),
    replicas=(BrokerId(1), BrokerId(2)),
    isr=(BrokerId(2),),
    partition_epoch=5,
    elr=(BrokerId(1),),
    unclean_epoch=LeaderEpoch(2),
    is_new=True,
)
TOPIC = StoredTopic("orders", TOPIC_ID, 1, {"retention.ms": "1"}, is_internal=True)
BROKER = BrokerImage(
    BrokerId(7),
    {"PLAINTEXT": Endpoint("::1", 9092), "TLS": Endpoint("host", 9093)},
    rack="rack-a",
    machine="m",
    token=bytes(range(16)),
)

MEMBER = Member(BrokerId(7), 12, "rack-a", "m")
TOMBSTONE = Tombstone(TOPIC_ID, "orders", 3, (BrokerId(1), BrokerId(2)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/orders", TOPIC),
        (PARTITION_KEY, PARTITION),
        ("making/AAECAwQFBgcICQoLDA0ODw", Making(TOPIC_ID, "orders", 3)),
        ("brokers/7", BROKER),
        ("brokers/7", BrokerImage(BrokerId(7), {"PLAINTEXT": Endpoint("host", 9092)})),
        ("brokers/7", replace(BROKER, features=frozenset({"delay", "later"}))),
        ("ready/7", Ready(BrokerId(7), 12)),
        ("suspected/7", Suspicion(BrokerId(7), 12, (BrokerId(1), BrokerId(3)))),
        ("members/7", MEMBER),
        ("members/7", Member(BrokerId(7), 12, is_draining=True)),
        ("members/7", Member(BrokerId(7), 12, is_draining=True, generation=3)),
        (PARTITION_KEY, replace(PARTITION, adding=(BrokerId(1),), removing=(BrokerId(2),))),
        ("settings/brokers", StoredSettings({"log.retention.ms": "1"})),
        ("settings/brokers/7", StoredSettings({"fetch.max.bytes": "1"})),
        ("settings/groups/a/b", StoredSettings({"consumer.session.timeout.ms": "1"})),
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
        "format": 3,
        "id": "AAECAwQFBgcICQoLDA0ODw",
        "internal": True,
        "config": {"retention.ms": "1"},
        "partitions": 1,
    }
    fields = json.loads(encode(PARTITION_KEY, PARTITION))
    assert re.fullmatch("[0-9a-f]{8}", fields.pop("crc32c"))
    assert fields == {
        "format": 3,
        "leader": None,
        "leader_epoch": 3,
        "replicas": [1, 2],
        "isr": [2],
        "partition_epoch": 5,
        "elr": [1],
        "unclean_epoch": 2,
        "new": True,
    }


def test_a_partition_that_was_written_before_there_were_replicas_has_none_of_their_fields() -> None:
    fields = json.loads(encode(PARTITION_KEY, PARTITION))
    for name in ("elr", "unclean_epoch", "new", "crc32c"):
        del fields[name]
    body = json.dumps(fields, separators=(",", ":")).encode()
    crc = crc32c(PARTITION_KEY.encode() + b"\n" + body)
    old = decode(PARTITION_KEY, body[:-1] + b',"crc32c":"%08x"}' % crc)
    assert old == replace(PARTITION, elr=(), unclean_epoch=LeaderEpoch(-1), is_new=False)


def test_producer_ids_are_read_back() -> None:
    assert decode_next_producer_id(encode_next_producer_id(ProducerId(2000))) == 2000


def test_a_newer_format_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(UsageRefused, match="'topics/orders' in format 4"):
        decode("topics/orders", b'{"format":4}')


def entry(key: str, value: Value, revision: int) -> Entry:
    return Entry(key, encode(key, value), Revision(revision))


def test_an_image_is_read_from_a_snapshot_with_the_revision_of_each_key() -> None:
    image = read_image(
        Snapshot(
            Revision(9),
            (
                entry("brokers/7", BROKER, 4),
                entry(PARTITION_KEY, PARTITION, 8),
                entry("ready/7", Ready(BrokerId(7), 4), 5),
                entry("topics/orders", TOPIC, 7),
            ),
        )
    )
    assert image.revision == 9
    assert image.brokers[BrokerId(7)].epoch == 4
    assert image.topics["orders"].partitions == (PARTITION,)
    assert image.topic_names == {TOPIC_ID: "orders"}
    assert image.mod_revisions == {
        "brokers/7": 4,
        PARTITION_KEY: 8,
        "ready/7": 5,
        "topics/orders": 7,
    }


def test_a_topic_that_has_lost_a_partition_is_damaged() -> None:
    snapshot = Snapshot(Revision(9), (entry("topics/orders", TOPIC, 7),))
    with pytest.raises(ValueDamaged, match="'topics/orders' counts partition 0"):
        read_image(snapshot)
    image, damaged = read_sound(snapshot)
    assert image.topics == {}
    assert list(damaged) == ["topics/orders"]


def test_a_damaged_partition_damages_its_topic() -> None:
    broken = Entry(PARTITION_KEY, encode(PARTITION_KEY, PARTITION)[:-9] + b'"}', Revision(8))
    snapshot = Snapshot(Revision(9), (broken, entry("topics/orders", TOPIC, 7)))
    image, damaged = read_sound(snapshot)
    assert image.topics == {}
    assert sorted(damaged) == [PARTITION_KEY, "topics/orders"]


def test_keys_that_do_not_concern_the_image_are_passed_over() -> None:
    unknown = (KeyChange("producer-ids", b"{}"), KeyChange("weather", b"rain"))
    assert list(read_changes(ChangeBatch(Revision(1), unknown))) == []
    entry = Entry("weather", b"rain", Revision(1))
    assert read_image(Snapshot(Revision(1), (entry,))).mod_revisions == {}


OLD_TOPIC = (
    b'{"format":%d,"id":"AAECAwQFBgcICQoLDA0ODw","internal":false,"config":{},"partitions":['
    b'{"leader":1,"leader_epoch":2,"replicas":[1],"isr":[1],"partition_epoch":3}]}'
)
OLD_VALUES = {
    "brokers/1": b'{"format":%d,"host":"h","port":1,"rack":null}',
    "cluster": b'{"format":%d,"id":"it"}',
    "producer-ids": b'{"format":%d,"next":1000}',
    "topics/orders": OLD_TOPIC,
}


def old_entry(key: str, format_: int) -> Entry:
    """A value as it was written in this format: without a checksum in the first."""
    value = OLD_VALUES[key] % format_
    if format_ > 1:
        checksum = crc32c(key.encode() + b"\n" + value)
        value = value[:-1] + b',"crc32c":"%08x"}' % checksum
    return Entry(key, value, Revision(5))


def old_store(format_: int) -> Snapshot:
    return Snapshot(Revision(5), tuple(old_entry(key, format_) for key in OLD_VALUES))


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize(("key", "value"), [("topics/orders", TOPIC), (PARTITION_KEY, PARTITION)])
def test_no_byte_of_a_value_can_change_unnoticed(key: str, value: Value, bit: int) -> None:
    whole = encode(key, value)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        with pytest.raises(ValueDamaged, match=f"'{key}'"):
            decode(key, bytes(flipped))
        for is_checked in (True, False):
            with pytest.raises(ValueDamaged, match=f"'{key}'"):
                decode_any(Entry(key, bytes(flipped), Revision(1)), is_checked=is_checked)


def test_a_value_that_is_known_is_not_decoded_if_its_bytes_are_the_same() -> None:
    data, other = encode("members/7", MEMBER), encode("members/7", Member(BrokerId(7), 13))
    known = {"members/7": (data, MEMBER)}

    def read(value: bytes | None) -> Value | None:
        batch = ChangeBatch(Revision(1), (KeyChange("members/7", value),))
        (change,) = read_changes(batch, known)
        return change.value

    assert read(data) is MEMBER
    assert read(other) == Member(BrokerId(7), 13)
    assert read(None) is None
    with pytest.raises(ValueDamaged):
        read(data[:-3])


def test_a_value_belongs_to_its_key() -> None:
    with pytest.raises(ValueDamaged, match="'topics/orderz' does not match its checksum"):
        decode("topics/orderz", encode("topics/orders", TOPIC))


@pytest.mark.parametrize("format_", [1, 2])
def test_a_store_of_old_is_read_as_one_of_today(format_: int) -> None:
    image = read_image(old_store(format_))
    assert image.cluster_id == "it"
    assert image.topics["orders"].id == TOPIC_ID
    assert [one.leader_epoch for one in image.topics["orders"].partitions] == [2]
    assert image.registered == {}, "every broker registers anew"
    assert is_checked_store(old_store(format_)) is (format_ == 2)
    assert [entry.key for entry in outdated_entries(old_store(format_))] == [
        "brokers/1",
        "producer-ids",
        "topics/orders",
        "cluster",
    ]


@pytest.mark.parametrize("format_", [1, 2])
def test_a_store_that_is_half_rewritten_is_read_as_before(format_: int) -> None:
    entries = {entry.key: entry for entry in old_store(format_).entries}
    before = read_image(old_store(format_))
    for key in ("producer-ids", "topics/orders"):
        for modern in modernized(entries[key], is_checked=format_ == 2):
            entries[modern.key] = modern
            half = Snapshot(Revision(5), tuple(entries[one] for one in sorted(entries)))
            assert read_image(half).topics == before.topics
            assert read_image(half).cluster_id == "it"


def test_a_store_that_has_checksums_believes_no_value_without() -> None:
    (cluster,) = modernized(old_entry("cluster", 1), is_checked=False)
    for key in ("producer-ids", "topics/orders"):
        with pytest.raises(ValueDamaged, match=f"'{key}' has no checksum"):
            read_image(Snapshot(Revision(6), (cluster, old_entry(key, 1))))


def test_a_topic_of_old_becomes_its_partitions_and_then_itself() -> None:
    modern = modernized(old_entry("topics/orders", 2), is_checked=True)
    assert [entry.key for entry in modern] == [PARTITION_KEY, "topics/orders"]
    assert decode("topics/orders", modern[1].value) == StoredTopic("orders", TOPIC_ID, 1)


def test_values_of_what_neither_moves_nor_is_drained_are_those_of_before_there_were_moves() -> None:
    """So an older Ottla reads them, and a store of one is not rewritten."""
    partition, member = encode(PARTITION_KEY, PARTITION), encode("members/7", MEMBER)
    assert json.loads(partition).keys() == {
        *("format", "leader", "leader_epoch", "replicas", "isr", "partition_epoch", "elr"),
        *("unclean_epoch", "new", "crc32c"),
    }
    assert json.loads(member).keys() == {"format", "epoch", "rack", "machine", "crc32c"}


def test_a_broker_that_registered_without_features_knows_none() -> None:
    written = json.loads(encode("brokers/7", BROKER))
    del written["features"], written["crc32c"]
    body = json.dumps(written, separators=(",", ":")).encode()
    crc = crc32c(b"brokers/7\n" + body)
    found = decode("brokers/7", body[:-1] + b',"crc32c":"%08x"}' % crc)
    assert found == replace(BROKER, features=frozenset())
