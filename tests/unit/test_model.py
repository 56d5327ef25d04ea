"""Names, endpoints, ranges and ids."""

import pytest

from ottla.model import (
    Endpoint,
    Offset,
    OffsetRange,
    TopicPartition,
    Uuid,
    format_uuid,
    parse_uuid,
    topic_name_problem,
)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249])
def test_a_topic_name_that_kafka_takes_has_no_problem(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "\u00e4"])
def test_any_other_topic_name_has_one(name: str) -> None:
    assert topic_name_problem(name)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("localhost:9092", Endpoint("localhost", 9092)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        ("127.0.0.1:0", Endpoint("127.0.0.1", 0)),
    ],
)
def test_an_endpoint_is_parsed_as_it_is_printed(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("text", ["", "host", ":9092", "host:", "host:x", "host:65536"])
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Endpoint.parse(text)


def test_a_range_is_half_open_and_never_backwards() -> None:
    assert len(OffsetRange(Offset(3), Offset(7))) == 4
    with pytest.raises(AssertionError, match="ends before its start"):
        OffsetRange(Offset(4), Offset(3))


def test_an_id_is_printed_as_kafka_does_and_parsed_back() -> None:
    uuid = Uuid(bytes(range(16)))
    assert format_uuid(uuid) == "AAECAwQFBgcICQoLDA0ODw"
    assert parse_uuid(format_uuid(uuid)) == uuid
    with pytest.raises(ValueError, match="not an id of 16 bytes"):
        parse_uuid("AAEC")


def test_a_partition_is_printed_as_its_directory_is_named() -> None:
    assert str(TopicPartition("a-b", 3)) == "a-b-3"
