"""Produce by hand, case by case; the properties of the same name hold it to the generic codec."""

import pytest

from ottla.errors import ProtocolViolation
from ottla.model import Uuid
from ottla.protocol.api import APIS, ApiKey, RequestHeader, response_frame
from ottla.protocol.codec import encode
from ottla.protocol.hot_fields import TopicKey
from ottla.protocol.hot_produce import (
    PRODUCE_FLEXIBLE,
    PRODUCE_TOPIC_IDS,
    ProducedPartition,
    read_produce,
    read_single_batch,
    write_produced,
)
from ottla.protocol.messages import produce as generic

VERSIONS = list(APIS[ApiKey.PRODUCE].versions)
ID = bytes(range(16))
BATCH = b"batch"
every_version = pytest.mark.parametrize("version", VERSIONS)


def key_in(version: int) -> TopicKey:
    return ID if version >= PRODUCE_TOPIC_IDS else "orders"


def request_of(
    *batches: bytes | None, transactional_id: str | None = None, name: str = "orders"
) -> generic.ProduceRequest:
    """A request with these batches for partitions 3, 4 and so on."""
    data = [
        generic.PartitionProduceData(index=index, records=batch)
        for index, batch in enumerate(batches, 3)
    ]
    return generic.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            generic.TopicProduceData(name=name, topic_id=Uuid(ID), partition_data=data),
        ],
    )


def wire_of(request: generic.ProduceRequest, version: int) -> memoryview:
    return memoryview(bytearray(b"??" + encode(request, version)))


@every_version
def test_a_request_is_read_in_every_version(version: int) -> None:
    request = request_of(BATCH, None, b"", transactional_id="t")
    found = read_produce(wire_of(request, version), 2, version)
    assert (found.transactional_id, found.acks, found.timeout_ms) == ("t", -1, 30_000)
    ((key, batches),) = found.topics
    assert key == key_in(version)
    assert [index for index, _ in batches] == [3, 4, 5]
    assert [None if batch is None else bytes(batch) for _, batch in batches] == [BATCH, None, b""]


@every_version
def test_a_batch_is_a_view_of_the_request(version: int) -> None:
    wire = wire_of(request_of(BATCH), version)
    ((_, [(_, batch)]),) = read_produce(wire, 2, version).topics
    assert batch is not None
    wire[bytes(wire).index(BATCH)] = ord("B")
    assert bytes(batch) == b"Batch"


@every_version
def test_a_request_that_is_cut_anywhere_is_a_violation(version: int) -> None:
    wire = encode(request_of(BATCH, BATCH), version)
    for size in range(len(wire)):
        with pytest.raises(ProtocolViolation):
            read_produce(memoryview(wire[:size]), 0, version)


@pytest.mark.parametrize("version", [v for v in VERSIONS if v < PRODUCE_FLEXIBLE])
def test_a_topic_without_a_name_is_a_violation(version: int) -> None:
    wire = bytes.fromhex("ffff ffff 00007530 00000001 ffff 00000000")
    with pytest.raises(ProtocolViolation, match="a topic name is null"):
        read_produce(memoryview(wire), 0, version)


@every_version
def test_one_batch_is_read_the_short_way_from_the_version_with_all_codecs_on(
    version: int,
) -> None:
    wire = wire_of(request_of(BATCH), version)
    found = read_single_batch(wire, 2, version)
    if version < 7:
        assert found is None
        return
    assert found is not None
    target, batch = found
    assert (target.key, target.partition) == (key_in(version), 3)
    assert (target.acks, target.timeout_ms) == (-1, 30_000)
    assert bytes(batch) == BATCH
    wire[bytes(wire).index(BATCH)] = ord("B")
    assert bytes(batch) == b"Batch", "a view"


@pytest.mark.parametrize(
    "size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152]
)
@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 7])
def test_a_batch_of_any_size_is_found_the_short_way(version: int, size: int) -> None:
    wire = wire_of(request_of(bytes(size)), version)
    found = read_single_batch(wire, 2, version)
    assert found is not None
    target, batch = found
    assert (target.key, target.partition, target.acks) == (key_in(version), 3, -1)
    assert batch == bytes(size)


@every_version
@pytest.mark.parametrize(
    "request_",
    [
        request_of(BATCH, BATCH),
        request_of(),
        request_of(None),
        request_of(BATCH, transactional_id="t"),
    ],
    ids=["two batches", "no batch", "a null batch", "a transaction"],
)
def test_every_other_request_goes_the_long_way(
    version: int, request_: generic.ProduceRequest
) -> None:
    assert read_single_batch(wire_of(request_, version), 2, version) is None


@every_version
def test_a_cut_request_goes_the_long_way(version: int) -> None:
    wire = encode(request_of(BATCH), version)
    for size in range(len(wire)):
        assert read_single_batch(memoryview(wire[:size]), 0, version) is None


@pytest.mark.parametrize(("name", "is_short"), [("x" * 126, True), ("x" * 127, False)])
def test_a_name_whose_length_takes_two_bytes_goes_the_long_way(name: str, is_short: bool) -> None:
    wire = wire_of(request_of(BATCH, name=name), 9)
    found = read_single_batch(wire, 2, 9)
    assert (found is not None) == is_short
    assert read_produce(wire, 2, 9).topics[0][0] == name


def test_such_a_name_is_not_mistaken_for_a_shorter_one() -> None:
    """Its bytes are those of a request for another topic, if the length were one byte."""
    name = "x" * 126 + "\x02"  # as the count of partitions would be
    wire = wire_of(request_of(b"b\0\0\0h", name=name), 9)  # with three empty sections for tags
    assert read_single_batch(wire, 2, 9) is None
    assert read_produce(wire, 2, 9).topics[0][0] == name


@pytest.mark.parametrize("version", [7, 9])
def test_a_name_that_is_no_text_goes_the_long_way_and_is_refused_there(version: int) -> None:
    wire = bytearray(encode(request_of(BATCH), version))
    wire[wire.index(b"orders")] = 0xFF
    assert read_single_batch(memoryview(wire), 0, version) is None
    with pytest.raises(ProtocolViolation, match=f"not a Produce v{version} request"):
        read_produce(memoryview(wire), 0, version)


def test_a_null_name_goes_the_long_way_and_is_refused_there() -> None:
    wire = memoryview(bytes.fromhex("00 ffff 00007530 02 00 02 00000003 06") + BATCH + bytes(3))
    assert read_single_batch(wire, 0, 9) is None
    with pytest.raises(ProtocolViolation):
        read_produce(wire, 0, 9)


@every_version
@pytest.mark.parametrize("message", [None, "the batch is too large"])
def test_a_response_has_the_bytes_of_the_generic_codec(version: int, message: str | None) -> None:
    result = ProducedPartition(3, 10, 100, 5, 40, message)
    generic_result = generic.PartitionProduceResponse(
        index=3,
        error_code=10,
        base_offset=100,
        log_append_time_ms=5,
        log_start_offset=40,
        error_message=message,
    )
    response = generic.ProduceResponse(
        responses=[
            generic.TopicProduceResponse(
                name="orders", topic_id=Uuid(ID), partition_responses=[generic_result] * 2
            )
        ]
    )
    header = RequestHeader(ApiKey.PRODUCE, version, 7, None)
    written = write_produced(7, version, [(key_in(version), [result] * 2)])
    assert written == response_frame(header, response)


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 7])
def test_a_target_knows_the_response_to_its_batch(version: int) -> None:
    found = read_single_batch(wire_of(request_of(BATCH), version), 2, version)
    assert found is not None
    result = ProducedPartition(3, 0, 100, 5, 40)
    expected = write_produced(7, version, [(key_in(version), [result])])
    assert found[0].response(7, 100, 5, 40) == expected
