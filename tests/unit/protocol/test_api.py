import subprocess
import sys

import pytest

from ottla.errors import ProtocolViolation, ResponseTooLarge
from ottla.protocol import api as api_module
from ottla.protocol.api import (
    APIS,
    NEVER,
    PRIVATE,
    Api,
    ApiKey,
    RequestHeader,
    key_of,
    parse_request_header,
    parse_response_header,
    request_frame,
    response_frame,
    response_frame_in_slices,
)
from ottla.protocol.codec import Steps
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.schema import message_versions

every_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


@every_api
def test_the_table_agrees_with_the_classes(api: Api) -> None:
    for message_class in (api.request_class, api.response_class):
        versions = message_versions(message_class)
        assert versions.valid == api.versions
        assert (versions.flexible.start if versions.flexible else NEVER) == api.flexible_from


@every_api
def test_a_request_class_knows_its_key(api: Api) -> None:
    assert key_of(api.request_class) is api.key


def test_keys_are_those_of_kafka_without_gaps_and_ours_far_behind() -> None:
    assert [key for key in ApiKey if key not in PRIVATE] == list(range(93))
    assert min(PRIVATE) >= 20_000


def test_messages_are_imported_only_when_met() -> None:
    """A broker starts without loading every message."""
    script = (
        "import sys, ottla.protocol.api as api;"
        "before = 'ottla.protocol.messages.acls' in sys.modules;"
        "api.APIS[api.ApiKey.DESCRIBE_ACLS].request_class;"
        "print(before, 'ottla.protocol.messages.acls' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_an_old_header_ends_with_the_client_id() -> None:
    wire = bytes.fromhex("000c 0003 00000007 0002 6869") + b"body"
    assert parse_request_header(wire) == (RequestHeader(ApiKey.HEARTBEAT, 3, 7, "hi"), 12)


def test_a_flexible_header_keeps_the_short_client_id_and_adds_tags() -> None:
    wire = bytes.fromhex("000c 0004 00000007 0002 6869 00") + b"body"
    assert parse_request_header(wire) == (RequestHeader(ApiKey.HEARTBEAT, 4, 7, "hi"), 13)


def test_a_header_may_lack_a_client_id_and_carry_unknown_tags() -> None:
    wire = bytes.fromhex("000c 0004 00000007 ffff 01 05 02 abcd") + b"body"
    assert parse_request_header(wire) == (RequestHeader(ApiKey.HEARTBEAT, 4, 7, None), 15)


def test_sasl_handshake_and_offset_delete_never_became_flexible() -> None:
    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE):
        assert not APIS[key].request_header_is_flexible(APIS[key].versions[-1])
        assert not APIS[key].response_header_is_flexible(APIS[key].versions[-1])


def test_the_answer_to_api_versions_always_has_the_oldest_header() -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 3, 9, None)
    frame = response_frame(header, ApiVersionsResponse(error_code=35))
    assert frame[:10].hex() == "0000000c" + "00000009" + "0023"


def test_an_api_versions_request_of_the_future_still_has_a_header() -> None:
    wire = bytes.fromhex("0012 0063 00000001 ffff 00")
    header, _ = parse_request_header(wire)
    assert header.api_version == 99
    assert header.api_version not in APIS[header.api_key].versions


@pytest.mark.parametrize("version", [3, 4])
def test_what_one_side_frames_the_other_reads(version: int) -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, version, 2**31 - 1, "Größe")
    request = HeartbeatRequest(group_id="g")
    frame = request_frame(header, request)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, position = parse_request_header(frame, 4)
    assert read == header
    assert position == 4 + 10 + len("Größe".encode()) + (version == 4)

    answer = response_frame(header, HeartbeatResponse())
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    correlation_id, position = parse_response_header(ApiKey.HEARTBEAT, version, answer, 4)
    assert correlation_id == 2**31 - 1
    assert position == 8 + (version == 4)


def test_a_client_without_a_name_frames_a_null() -> None:
    frame = request_frame(RequestHeader(ApiKey.API_VERSIONS, 0, 1, None), ApiVersionsRequest())
    assert frame.hex() == "0000000a" + "0012" + "0000" + "00000001" + "ffff"


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        ("", "end inside the request header"),
        ("000c 0003 00000007 00", "end inside the request header"),
        ("03e7 0000 00000007 ffff", "unknown API key 999"),
        ("ffff 0000 00000007 ffff", "unknown API key -1"),
        ("0004 0000 00000007 ffff", "unknown API key 4"),
        ("000c 0003 00000007 0005 6869", "client id has the impossible length 5"),
        ("000c 0003 00000007 fffe", "client id has the impossible length -2"),
        ("000c 0003 00000007 0002 c328", "client id is not UTF-8"),
        ("000c 0004 00000007 0002 6869", "end inside the request header"),
        ("000c 0004 00000007 0002 6869 01 00 09", "end inside"),
    ],
)
def test_a_bad_header_is_refused(wire: str, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        parse_request_header(bytes.fromhex(wire))


def test_a_short_answer_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="end inside the response header"):
        parse_response_header(ApiKey.HEARTBEAT, 3, b"\0\0\0")
    with pytest.raises(ProtocolViolation, match="end inside the response header"):
        parse_response_header(ApiKey.HEARTBEAT, 4, b"\0\0\0\0")


def metadata_response(topic_count: int) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(name="orders")] * topic_count)


def stepped(steps: Steps[bytearray], counts: list[int]) -> bytearray:
    """The frame that steps return; `counts` gets the elements of each step."""
    while True:
        try:
            counts.append(next(steps))
        except StopIteration as over:
            frame: bytearray = over.value
            return frame


@pytest.mark.parametrize("version", [8, 12])
def test_a_response_in_slices_is_the_same_frame(version: int) -> None:
    header = RequestHeader(ApiKey.METADATA, version, 77, None)
    response = metadata_response(1000)
    counts: list[int] = []
    frame = stepped(response_frame_in_slices(header, response), counts)
    assert frame == response_frame(header, response)
    assert sum(counts) == 1000
    assert len(counts) > 1


def test_a_response_that_no_client_would_read_is_refused_before_all_of_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_module, "RESPONSE_BYTES_MAX", 30_000)
    header = RequestHeader(ApiKey.METADATA, 8, 77, None)
    assert len(stepped(response_frame_in_slices(header, metadata_response(1000)), [])) < 30_000
    counts: list[int] = []
    with pytest.raises(ResponseTooLarge, match=r"METADATA: .* larger than 30000 bytes"):
        stepped(response_frame_in_slices(header, metadata_response(100_000)), counts)
    assert sum(counts) < 2000
