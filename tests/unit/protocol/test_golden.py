"""Requests as real clients sent them, recorded by tools/capture.py."""

import re
from pathlib import Path

import pytest

from ottla.protocol.api import APIS, parse_request_header, request_frame
from ottla.protocol.codec import decode

LENGTH_BYTES = 4
FRAMES = sorted((Path(__file__).parents[2] / "golden").glob("*.hex"))


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
