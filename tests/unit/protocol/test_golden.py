"""Requests as real clients sent them, and answers as Apache's broker gave them.

Recorded by tools/capture.py and tools/capture_apache.py.
"""

import re
from pathlib import Path

import pytest

from ottla.protocol.api import (
    APIS,
    ApiKey,
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_frame,
    response_frame,
)
from ottla.protocol.codec import decode

LENGTH_BYTES = 4
GOLDEN = Path(__file__).parents[2] / "golden"
FRAMES = sorted(GOLDEN.glob("*.hex"))
ANSWERS = sorted((GOLDEN / "answers").glob("*.hex"))
NAME = re.compile(r"apache_(?P<api>\w+)_v(?P<version>\d+)")


def read_frame(path: Path) -> bytes:
    return bytes.fromhex(path.read_text())


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_what_a_client_sent_is_read_and_would_be_written_the_same(path: Path) -> None:
    frame = read_frame(path)
    header, position = parse_request_header(frame)
    assert f"_{header.api_key.name.lower()}_v{header.api_version}" in path.stem
    request = decode(APIS[header.api_key].request_class, header.api_version, frame, position)
    rewritten = request_frame(header, request)[LENGTH_BYTES:]
    left_over = frame[len(rewritten) :]
    assert frame == rewritten + left_over
    assert bool(left_over) == path.stem.endswith("_left_over")


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_what_apache_answered_is_read_and_would_be_written_the_same(path: Path) -> None:
    frame = read_frame(path)
    found = NAME.fullmatch(path.stem)
    assert found is not None
    key, version = ApiKey[found["api"].upper()], int(found["version"])
    correlation_id, position = parse_response_header(key, version, frame)
    answer = decode(APIS[key].response_class, version, frame, position)
    header = RequestHeader(key, version, correlation_id, None)
    assert response_frame(header, answer)[LENGTH_BYTES:] == frame


def test_apaches_answers_to_all_that_clients_live_on_are_there() -> None:
    found = (NAME.fullmatch(path.stem) for path in ANSWERS)
    answered = {one["api"] for one in found if one is not None}
    assert answered >= {
        "api_versions",
        "metadata",
        "produce",
        "fetch",
        "list_offsets",
        "find_coordinator",
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "offset_commit",
        "offset_fetch",
        "list_groups",
        "describe_groups",
        "consumer_group_heartbeat",
        "create_topics",
        "delete_topics",
        "create_partitions",
        "delete_records",
        "describe_configs",
        "incremental_alter_configs",
        "init_producer_id",
        "add_partitions_to_txn",
        "end_txn",
    }


def test_librdkafka_leaves_three_bytes_over_when_it_asks_for_all_topics() -> None:
    """It writes four zeros where one belongs, so that what follows is never reached."""
    (path,) = (path for path in FRAMES if path.stem == "confluent_metadata_v13_left_over")
    frame = read_frame(path)
    header, position = parse_request_header(frame)
    request = decode(APIS[header.api_key].request_class, header.api_version, frame, position)
    assert request.topics is None
    assert len(frame) - (len(request_frame(header, request)) - LENGTH_BYTES) == 3


@pytest.mark.parametrize("client", ["aiokafka", "confluent", "kafka_python", "kcat"])
def test_every_client_was_recorded_producing_and_consuming(client: str) -> None:
    recorded = {
        re.sub(r"_v\d+.*", "", path.stem.removeprefix(f"{client}_"))
        for path in FRAMES
        if path.stem.startswith(client)
    }
    assert recorded >= {
        "api_versions",
        "metadata",
        "produce",
        "list_offsets",
        "fetch",
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "offset_commit",
        "offset_fetch",
    }
