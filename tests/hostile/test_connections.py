"""Too many connections, half-dead ones, and those that ask without listening."""

import os
import resource
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import build
from hostile.attacked_broker import MIB, AttackedBroker, attacked_broker, wait_until
from hostile.control import served_throughout
from hostile.wire import (
    API_VERSIONS_V0,
    RawClient,
    create_topic,
    fetch_request,
    framed,
    produce_request,
    raw_client,
    request_bytes,
)
from ottla.broker.descriptors import share_out
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.coordination import FindCoordinatorRequest

PER_IP_MAX = 50
CONNECTIONS = 10_000
HALF_OPEN = 5000
STILL_ALIVE = 20
TCP_REPAIR = 19  # of Linux: such a socket closes without a packet
BROKER = 4
PIPELINED = 10_000
FETCHED_BYTES = 32 * MIB
ANSWERED = 'ottla_requests_total{api="metadata"}'


def settle(broker: AttackedBroker, connections: int = 0) -> None:
    wait_until(lambda: broker.metric("ottla_connections") == connections)


def test_connections_beyond_the_limit_are_closed_at_once_and_leave_nothing(tmp_path: Path) -> None:
    with attacked_broker(tmp_path, f"max.connections.per.ip={PER_IP_MAX}") as broker:
        descriptors = broker.descriptor_count()
        held = [RawClient(broker.connect()) for _ in range(PER_IP_MAX)]
        for client in held:
            client.ask(ApiVersionsRequest(), 0)
        for _ in range(200):
            with raw_client(broker) as refused:
                refused.send(framed(API_VERSIONS_V0) * 3)
                assert refused.is_closed_by_broker
        assert broker.metric("ottla_connections_refused") == 200
        assert held[0].ask(ApiVersionsRequest(), 0).api_keys
        for client in held:
            client.socket.close()
        settle(broker)
        with raw_client(broker) as client:
            assert client.ask(ApiVersionsRequest(), 0).api_keys
        settle(broker)
        wait_until(lambda: broker.descriptor_count() <= descriptors)


def test_connections_take_only_their_share_of_descriptors(tmp_path: Path) -> None:
    """The logs need descriptors too: running out of them would take the directory offline."""
    room = share_out(1000).connections
    with attacked_broker(tmp_path, descriptors_max=1000) as broker:
        create_topic(broker, "before")
        crowd = [broker.connect() for _ in range(1000)]
        wait_until(lambda: broker.metric("ottla_connections_refused") == 1000 - room)
        assert broker.metric("ottla_connections") == room
        assert "process's descriptors" in broker.log.read_text()
        for one in crowd:
            one.close()
        settle(broker)
        create_topic(broker, "after")
        with served_throughout(broker) as control:
            control.wait_round_trips(3)
        assert broker.metric("ottla_log_dir_offline") == 0


def connect_and_vanish(broker: AttackedBroker, number: int) -> None:
    """End a connection without telling the other side, as a machine that lost its power does.

    Each from an address of its own: ours believes the port to be free again, and would reset the
    connection if it took it twice.
    """
    with socket.socket() as one:
        one.bind((f"127.1.{number >> 8}.{number & 255}", 0))
        one.connect((broker.host, broker.port))
        one.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)


@pytest.mark.slow
def test_thousands_of_connections_most_of_them_dead_are_limited_and_swept(
    tmp_path: Path, report: Callable[[str], None]
) -> None:
    """As many as there may be, and of five thousand the other side has gone without a word.

    Fewer where the system gives a broker fewer descriptors, of which it lends half to
    connections; how many it were is shown with the figures.
    """
    if os.geteuid() != 0:
        pytest.skip("ending a connection without a packet needs root")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    limit = min(CONNECTIONS, share_out(allowed).connections)
    dead = min(HALF_OPEN, limit - STILL_ALIVE)
    with attacked_broker(tmp_path, f"max.connections={limit}") as broker:
        create_topic(broker, "before")
        descriptors = broker.descriptor_count()
        with broker.memory_grows_less_than(256 * MIB):
            for number in range(dead):
                connect_and_vanish(broker, number)
            silent = [broker.connect() for _ in range(limit - dead)]
            settle(broker, limit)
            with raw_client(broker) as refused:
                refused.send(framed(API_VERSIONS_V0))
                assert refused.is_closed_by_broker
            for _ in range(STILL_ALIVE // 2):
                silent.pop().close()
            with served_throughout(broker) as control:
                control.wait_round_trips(20)
            with RawClient(silent.pop()) as one:
                assert set_broker(one, "connections.max.idle.ms", "1000") == 0
            settle(broker)
        for other in silent:
            assert other.recv(1) == b""
            other.close()
        # The control client's topic and the groups' are files, of which some stay open.
        partitions = sum(1 for path in broker.data.iterdir() if path.is_dir())
        wait_until(lambda: broker.descriptor_count() <= descriptors + 2 * partitions)
        report(
            f"{limit} connections, {dead} of them dead"
            f" (the system allows {allowed} descriptors): {control.figures()}"
        )


def set_broker(client: RawClient, name: str, value: str) -> int:
    """Change a setting of all brokers; the error code."""
    change = IncrementalAlterableConfig(name=name, config_operation=0, value=value)
    brokers = IncrementalAlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[change]
    )
    (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[brokers]), 1).responses
    return int(answer.error_code)


def test_silent_connections_are_swept_and_waiting_ones_are_not(tmp_path: Path) -> None:
    with attacked_broker(tmp_path, "connections.max.idle.ms=1500") as broker:
        create_topic(broker, "quiet")
        descriptors = broker.descriptor_count()
        silent = [broker.connect() for _ in range(200)]
        with raw_client(broker) as patient:
            waiting = fetch_request(TopicPartition("quiet", 0), 0, max_wait_ms=5000)
            started_s = time.monotonic()
            answer = patient.ask(waiting, 11)
            assert time.monotonic() - started_s > 4.5
            assert answer.responses[0].partitions[0].error_code == 0
        for one in silent:
            assert one.recv(1) == b""
            one.close()
        settle(broker)
        wait_until(lambda: broker.descriptor_count() <= descriptors)


def test_a_client_that_never_reads_its_answers_is_swept(tmp_path: Path) -> None:
    with attacked_broker(tmp_path, "connections.max.idle.ms=1500") as broker:
        with raw_client(broker) as deaf:
            deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            fill(deaf, framed(API_VERSIONS_V0))
            settle(broker)
        assert broker.metric("ottla_request_buffer_bytes") == 0


def fill(client: RawClient, frame: bytes) -> int:
    """Send a frame again and again until neither side takes more; count the bytes."""
    client.socket.setblocking(False)
    chunk, sent, stalled = frame * 500, 0, 0
    while stalled < 20:
        try:
            sent += client.socket.send(chunk[sent % len(frame) :])
            stalled = 0
        except BlockingIOError:
            stalled += 1
            time.sleep(0.02)  # the broker is another process: give it time to take more
    client.socket.setblocking(True)
    client.socket.settimeout(30)
    return sent


def test_requests_without_listening_meet_back_pressure_and_then_ordered_answers(
    broker: AttackedBroker,
) -> None:
    for number in range(30):  # each makes an answer longer; kernels buffer megabytes of them
        create_topic(broker, f"a-topic-with-a-name-that-makes-answers-longer-{number}")
    with raw_client(broker) as client, broker.memory_grows_less_than(16 * MIB):
        frames = [
            framed(struct.pack(">hhihi", ApiKey.METADATA, 0, number, -1, 0))
            for number in range(PIPELINED)
        ]
        wire = b"".join(frames)
        before = broker.metric(ANSWERED)
        sent = fill_with(client, wire)
        assert broker.metric(ANSWERED) - before < PIPELINED / 2
        answers, received = 0, bytearray()
        deadline_s = time.monotonic() + 60
        while answers < PIPELINED:
            assert time.monotonic() < deadline_s
            sent += send_some(client.socket, wire, sent)
            received += receive_some(client.socket)
            answers = take_answers(received, answers)
    wait_until(lambda: broker.metric("ottla_request_buffer_bytes") == 0)


def fill_with(client: RawClient, wire: bytes) -> int:
    client.socket.setblocking(False)
    sent, stalled = 0, 0
    while stalled < 10:
        more = send_some(client.socket, wire, sent)
        sent += more
        stalled = 0 if more else stalled + 1
        if not more:
            time.sleep(0.02)  # the broker is another process: give it time to take more
    return sent


def send_some(one: socket.socket, wire: bytes, sent: int) -> int:
    try:
        return one.send(wire[sent : sent + 65536]) if sent < len(wire) else 0
    except BlockingIOError:
        return 0


def receive_some(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 18)
    except BlockingIOError:
        return b""


def take_answers(received: bytearray, expected: int) -> int:
    """Cut whole answers off the front; each must carry the next number."""
    position = 0
    while len(received) - position >= 8:
        size, number = struct.unpack_from(">ii", received, position)
        if len(received) - position < 4 + size:
            break
        assert number == expected
        expected += 1
        position += 4 + size
    del received[:position]
    return expected


def test_one_flooding_client_does_not_starve_another(broker: AttackedBroker) -> None:
    """Tiny requests that are answered at once: the loop is shared between them and others."""
    flood = framed(API_VERSIONS_V0) * 5000
    with raw_client(broker) as noisy, raw_client(broker) as quiet:
        noisy.socket.setblocking(False)
        slowest_s = 0.0
        deadline_s = time.monotonic() + 2
        while time.monotonic() < deadline_s:
            send_some(noisy.socket, flood, 0)
            receive_some(noisy.socket)
            started_s = time.perf_counter()
            quiet.ask(ApiVersionsRequest(), 0)
            slowest_s = max(slowest_s, time.perf_counter() - started_s)
            # The flood may have been cut in the middle of a frame: a new one begins cleanly.
            noisy.socket.close()
            noisy.socket = broker.connect()
            noisy.socket.setblocking(False)
    assert slowest_s < 1.0


def test_a_waiting_fetch_holds_back_what_is_behind_it_and_lets_it_go_in_order(
    broker: AttackedBroker,
) -> None:
    tp = TopicPartition("barrier", 0)
    create_topic(broker, tp.topic)
    with raw_client(broker) as waiting, raw_client(broker) as producer:
        waiting.send(
            request_bytes(fetch_request(tp, 0, max_wait_ms=30_000), 11, 1)
            + framed(API_VERSIONS_V0[:4] + struct.pack(">i", 2) + b"\xff\xff") * 3
        )
        producer.ask(produce_request(tp, bytes(build.batch())), 8)
        numbers = [waiting.read_answer() for _ in range(4)]
    assert [int.from_bytes((n or b"")[:4], "big") for n in numbers] == [1, 2, 2, 2]


def test_a_client_that_leaves_while_it_waits_is_noticed(broker: AttackedBroker) -> None:
    tp = TopicPartition("abandoned", 0)
    create_topic(broker, tp.topic)
    wait_until(lambda: broker.metric("ottla_connections") == 0)
    wait = request_bytes(fetch_request(tp, 0, max_wait_ms=300_000), 11)
    for behind in (b"", framed(API_VERSIONS_V0) * 100):
        for _ in range(20):
            with raw_client(broker) as client:
                client.send(wait + behind)
        settle(broker)
    assert broker.metric("ottla_request_buffer_bytes") == 0


def test_a_client_that_closes_its_sending_side_is_closed(broker: AttackedBroker) -> None:
    with raw_client(broker) as client:
        client.send(framed(API_VERSIONS_V0))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.read_answer() is not None
        assert client.is_closed_by_broker


@pytest.mark.parametrize("is_reset", [False, True])
def test_clients_that_leave_in_the_middle_of_a_large_answer_cost_nothing(
    broker: AttackedBroker, is_reset: bool
) -> None:
    tp = TopicPartition("large", 0)
    create_topic(broker, tp.topic)
    with raw_client(broker) as producer:
        for _ in range(FETCHED_BYTES // MIB):
            producer.ask(produce_request(tp, bytes(build.batch(value=os.urandom(MIB - 200)))), 8)
        # The control client asks for its group's coordinator: the files of that topic stay open.
        producer.ask(FindCoordinatorRequest(key="control"), 1)
    settle(broker)
    descriptors = broker.descriptor_count()
    wanted = fetch_request(tp, 0, max_bytes=FETCHED_BYTES)
    wanted.topics[0].partitions[0].partition_max_bytes = FETCHED_BYTES
    with served_throughout(broker), broker.memory_grows_less_than(32 * MIB):
        for _ in range(30):
            with raw_client(broker) as client:
                if is_reset:
                    client.socket.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                client.send(request_bytes(wanted, 11))
                assert client.socket.recv(100_000)
    settle(broker)
    wait_until(lambda: broker.descriptor_count() <= descriptors + 16)


def test_a_thousand_comings_and_goings_leak_no_descriptor(broker: AttackedBroker) -> None:
    settle(broker)
    before = broker.descriptor_count()
    for number in range(1000):
        with raw_client(broker) as client:
            match number % 4:
                case 0:
                    client.ask(ApiVersionsRequest(), 0)
                case 1:
                    client.send(framed(API_VERSIONS_V0))
                case 2:
                    client.send(struct.pack(">i", 1000) + b"half a request")
                case _:
                    pass  # comes and goes without a word
    settle(broker)
    wait_until(lambda: broker.descriptor_count() <= before)
    assert broker.metric("ottla_request_buffer_bytes") == 0


def test_two_requests_that_together_exceed_the_budget_are_both_finished(tmp_path: Path) -> None:
    """If both had to wait for memory, neither would be finished and no memory come back."""
    settings = ("queued.max.request.bytes=1048576", "message.max.bytes=3000000")
    with attacked_broker(tmp_path, *settings) as broker:
        tp = TopicPartition("large", 0)
        create_topic(broker, tp.topic)
        frame = request_bytes(produce_request(tp, bytes(build.batch(value=bytes(2_500_000)))), 8)
        clients = [RawClient(broker.connect()) for _ in range(6)]
        for client in clients:
            client.send(frame[:700_000])
        wait_until(lambda: broker.metric("ottla_request_buffer_bytes") > 1048576)
        with raw_client(broker) as small:
            assert small.ask(ApiVersionsRequest(), 0).api_keys
        for client in clients:
            client.socket.setblocking(False)
        sent = dict.fromkeys(range(len(clients)), 700_000)
        deadline_s = time.monotonic() + 20
        while any(place < len(frame) for place in sent.values()):
            assert time.monotonic() < deadline_s
            for number, client in enumerate(clients):
                sent[number] += send_some(client.socket, frame, sent[number])
        for client in clients:
            client.socket.setblocking(True)
            assert client.read_answer() is not None
            client.socket.close()
        settle(broker)
        assert broker.metric("ottla_request_buffer_bytes") == 0
