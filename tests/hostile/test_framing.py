"""Lengths that lie, requests that never end, keys and versions that do not exist."""

import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hostile.attacked_broker import MIB, AttackedBroker, attacked_broker, wait_until
from hostile.control import served_throughout
from hostile.wire import API_VERSIONS_V0, framed, raw_client, served_layouts
from ottla.errors import ErrorCode
from ottla.protocol.api import APIS, ApiKey, key_of, parse_response_header
from ottla.protocol.codec import decode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

REQUEST_BYTES_MAX = 100 * MIB  # the default of socket.request.max.bytes
SLOW_SOCKETS = 500
READ_TIMEOUT_S = 2


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 0, 3, 7, REQUEST_BYTES_MAX + 1])
def test_an_impossible_length_closes_the_connection(broker: AttackedBroker, size: int) -> None:
    with broker.memory_grows_less_than(MIB), raw_client(broker) as client:
        client.send(struct.pack(">i", size))
        assert client.is_closed_by_broker


def test_a_length_that_arrives_byte_by_byte_is_checked_as_well(broker: AttackedBroker) -> None:
    with raw_client(broker) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\x7f\xff\xff\xff":
            client.send(bytes([byte]))
        assert client.is_closed_by_broker


def test_a_peer_that_violates_again_and_again_is_logged_once(tmp_path: Path) -> None:
    with attacked_broker(tmp_path) as broker:
        for _ in range(20):
            with raw_client(broker) as client:
                client.send(b"\xff\xff\xff\xff")
                assert client.is_closed_by_broker
        assert broker.log.read_text().count("connection closed") == 1
        assert broker.metric("ottla_protocol_violations") == 20


def test_a_large_length_alone_costs_no_memory(broker: AttackedBroker) -> None:
    with broker.memory_grows_less_than(8 * MIB):
        sockets = [broker.connect() for _ in range(50)]
        for one in sockets:
            one.sendall(struct.pack(">i", REQUEST_BYTES_MAX) + bytes(100))
        wait_until(lambda: broker.metric("ottla_request_buffer_bytes") >= 50 * 100)
        for one in sockets:
            one.close()
    wait_until(lambda: broker.metric("ottla_request_buffer_bytes") == 0)


def test_requests_that_trickle_in_are_ended_and_nobody_else_notices(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    settings = f"request.read.timeout.ms={READ_TIMEOUT_S * 1000}"
    with attacked_broker(tmp_path, settings) as broker:
        with served_throughout(broker) as control, broker.memory_grows_less_than(64 * MIB):
            control.wait_round_trips(10)
            slow = [broker.connect() for _ in range(SLOW_SOCKETS)]
            for one in slow:
                one.sendall(struct.pack(">i", REQUEST_BYTES_MAX))
            begun_s = time.monotonic()
            assert trickle_until_closed(slow) == SLOW_SOCKETS
            assert time.monotonic() - begun_s < READ_TIMEOUT_S * 10
        report(f"{SLOW_SOCKETS} trickling connections, {control.figures()}")
        wait_until(lambda: broker.metric("ottla_connections") == 0)
        assert broker.metric("ottla_request_buffer_bytes") == 0


def trickle_until_closed(sockets: list[socket.socket]) -> int:
    """Send a byte a second on each; count those that the broker closed."""
    closed_count = 0
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(timeout=1):
                assert isinstance(key.fileobj, socket.socket)
                selector.unregister(key.fileobj)
                key.fileobj.close()
                closed_count += 1
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                with suppress(BrokenPipeError, ConnectionResetError):  # the next round tells
                    key.fileobj.send(b"x")
    return closed_count


def test_an_unknown_key_closes_the_connection(broker: AttackedBroker) -> None:
    for key in (9999, -1, 93, 4, 58):
        with raw_client(broker) as client:
            client.send(framed(struct.pack(">hhih", key, 0, 1, -1)))
            assert client.is_closed_by_broker


def test_a_version_beyond_the_newest_or_below_the_oldest_closes_the_connection(
    broker: AttackedBroker,
) -> None:
    served: dict[ApiKey, list[int]] = {}
    for layout in served_layouts(broker):
        served.setdefault(key_of(layout.message_class), []).append(layout.version)
    del served[ApiKey.API_VERSIONS]
    for key, versions in served.items():
        for version in (max(versions) + 1, 2**15 - 1, min(versions) - 1, -(2**15)):
            with raw_client(broker) as client:
                client.send(framed(struct.pack(">hhih", key, version, 1, -1) + bytes(40)))
                assert client.is_closed_by_broker, (key, version)


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_whole_table(
    broker: AttackedBroker, version: int
) -> None:
    with raw_client(broker) as client:
        known = client.ask(ApiVersionsRequest(), 0)
        client.send(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 42, -1) + bytes(1)))
        answer = client.read_answer()
        assert answer is not None
        correlation_id, position = parse_response_header(ApiKey.API_VERSIONS, 0, answer)
        response = decode(ApiVersionsResponse, 0, answer, position)
        assert correlation_id == 42
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert response.api_keys == known.api_keys
        assert len(response.api_keys) > 10
        assert client.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def test_every_advertised_version_is_one_that_we_can_read(broker: AttackedBroker) -> None:
    with raw_client(broker) as client:
        for one in client.ask(ApiVersionsRequest(), 0).api_keys:
            assert one.max_version in APIS[one.api_key].versions


def test_a_frame_split_at_every_byte_is_still_one_frame(broker: AttackedBroker) -> None:
    frame = framed(API_VERSIONS_V0)
    with raw_client(broker) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(frame)):
            client.send(frame[:cut])
            client.send(frame[cut:])
            assert client.read_answer() is not None


def test_a_header_cut_anywhere_closes_the_connection(broker: AttackedBroker) -> None:
    whole = struct.pack(">hhih", ApiKey.METADATA, 12, 1, 7) + b"hostile" + b"\0" + b"\0\0\0"
    for size in range(8, len(whole) - 3):
        with raw_client(broker) as client:
            client.send(framed(whole[:size]))
            assert client.is_closed_by_broker, size
