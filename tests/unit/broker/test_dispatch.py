"""Headers and versions are checked; what is served gets to its handler, all else is refused."""

import asyncio
import errno
import gc
import struct
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.loopback import run, turns
from ottla.broker import slices
from ottla.broker.apis import HANDLERS, Handler, Handlers
from ottla.broker.connection import Connection, RequestFailed
from ottla.broker.deferred import Deferred
from ottla.broker.dispatch import Dispatcher
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.pending import Pending, Response
from ottla.broker.services import RequestContext
from ottla.clock import Clock
from ottla.config import BrokerConfig
from ottla.errors import ApiError, ErrorCode, NotCoordinator, ProtocolViolation
from ottla.protocol.api import (
    APIS,
    PRIVATE,
    ApiKey,
    RequestHeader,
    parse_response_header,
    request_frame,
)
from ottla.protocol.codec import Steps, decode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import WriteTxnMarkersRequest
from ottla.settings import Settings


class HotHandler:
    """Stands where Produce and Fetch stand; remembers where the body began."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self._problem = problem

    def take(self, frame: memoryview, position: int, version: int, correlation_id: int) -> Response:
        if self._problem is not None:
            raise self._problem
        self.bodies.append(bytes(frame[position:]))
        return b"answer"


class HeldClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class FakeConnection:
    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.is_closed = False

        self.violations: list[str] = []

    def close(self) -> None:
        self.is_closed = True

    def end(self, violation: ProtocolViolation) -> None:
        self.violations.append(str(violation))
        self.is_closed = True

    def note_violation(self, text: str) -> None:
        self.violations.append(text)


class Described:
    """A handler that has to wait for something."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[DescribeClusterResponse] = (
            asyncio.get_running_loop().create_future()
        )

    async def __call__(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        return await self.outcome


def list_offsets(request: ListOffsetsRequest, context: RequestContext) -> Any:
    """A handler that does something for each topic."""

    def answer() -> Steps[ListOffsetsResponse]:
        response = ListOffsetsResponse()
        for topic in request.topics:
            response.topics.append(ListOffsetsTopicResponse(name=topic.name))
            yield 1
        return response

    return slices.start(answer())


def _heartbeat_response(code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


class _Beat(Deferred[ErrorCode, HeartbeatResponse]):
    def __init__(self, build: Callable[[ErrorCode], HeartbeatResponse]) -> None:
        super().__init__()
        self._build = build

    def build(self, value: ErrorCode) -> HeartbeatResponse:
        return self._build(value)

    def refuse(self, error: ApiError) -> HeartbeatResponse:
        return self._build(error.code)


class Beating:
    """A handler whose response waits for a coordinator's log; `build` makes it."""

    def __init__(self) -> None:
        self.deferred: list[Deferred[ErrorCode, HeartbeatResponse]] = []
        self.build: Callable[[ErrorCode], HeartbeatResponse] = _heartbeat_response

    def __call__(
        self, request: HeartbeatRequest, context: RequestContext
    ) -> Deferred[ErrorCode, HeartbeatResponse]:
        made = _Beat(self.build)
        self.deferred.append(made)
        return made


_SERVICES = cast("Any", SimpleNamespace(serves_share_groups=True))


def few_handlers(described: Described, beating: Beating) -> dict[ApiKey, Handler]:
    """The handlers of a few APIs; the table says which others are served."""
    return {
        ApiKey.API_VERSIONS: ApiVersions(cast("Any", SimpleNamespace(serves_share_groups=True))),
        ApiKey.DESCRIBE_CLUSTER: described,
        ApiKey.WRITE_TXN_MARKERS: described,
        ApiKey.LIST_OFFSETS: list_offsets,
        ApiKey.HEARTBEAT: beating,
    }


class Scene:
    def __init__(
        self, *, problem: Exception | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.hot = HotHandler(problem)
        self.described = Described()
        self.beating = Beating()
        self.connection = FakeConnection()
        self.defects: list[BaseException] = []
        self.clock = HeldClock()
        self.dispatcher = Dispatcher(
            cast("Any", self.hot),
            cast("Any", self.hot),
            cast("Handlers", few_handlers(self.described, self.beating)),
            Settings(BrokerConfig().override(settings or {})),
            asyncio.get_running_loop(),
            self.defects.append,
            cast("Clock", self.clock),
        )

    def take(self, frame: bytes) -> Response:
        return self.dispatcher.take(memoryview(frame), cast("Connection", self.connection))


def frame_of(request: Any, key: ApiKey, version: int, client_id: str | None = "me") -> bytes:
    return bytes(request_frame(RequestHeader(key, version, 7, client_id), request))[4:]


def test_a_body_is_found_behind_every_kind_of_header() -> None:
    async def scenario() -> None:
        scene = Scene()
        for version in APIS[ApiKey.PRODUCE].versions:
            for client_id in (None, "", "somebody"):
                frame = frame_of(ProduceRequest(), ApiKey.PRODUCE, version, client_id)
                assert scene.take(frame) == b"answer"
                assert frame.endswith(scene.hot.bodies[-1])
                body = frame_of(ProduceRequest(), ApiKey.PRODUCE, version, None)
                flexible = APIS[ApiKey.PRODUCE].request_header_is_flexible(version)
                assert scene.hot.bodies[-1] == body[11 if flexible else 10 :]

    run(scenario())


def test_a_header_cut_anywhere_is_a_violation() -> None:
    async def scenario() -> None:
        scene = Scene()
        for key, version in ((ApiKey.PRODUCE, 9), (ApiKey.FETCH, 12), (ApiKey.DESCRIBE_CLUSTER, 1)):
            head = struct.pack(">hhih", key, version, 7, 4) + b"name"
            for size in range(len(head)):
                with pytest.raises(ProtocolViolation):
                    scene.take(head[:size])

    run(scenario())


HEARTBEAT = HeartbeatRequest(group_id="g")


def test_a_deferred_response_is_encoded_when_the_coordinator_delivers_it() -> None:
    async def scenario() -> None:
        scene = Scene()
        pending = scene.take(frame_of(HEARTBEAT, ApiKey.HEARTBEAT, 4))
        assert isinstance(pending, Pending)
        assert pending.is_barrier
        assert pending.parts is None
        scene.beating.deferred[0].deliver(ErrorCode.REBALANCE_IN_PROGRESS)
        assert isinstance(pending.parts, bytes)
        response = decode(HeartbeatResponse, 4, pending.parts, 9)
        assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS

    run(scenario())


def test_a_large_request_waits_for_a_deferred_response_too() -> None:
    async def scenario() -> None:
        scene = Scene()
        large = HeartbeatRequest(member_id="m" * 32_767, group_instance_id="i" * 32_767)
        pending = scene.take(frame_of(large, ApiKey.HEARTBEAT, 3))
        assert isinstance(pending, Pending)
        await turns()
        scene.beating.deferred[0].fail(NotCoordinator("elsewhere"))
        response = decode(HeartbeatResponse, 3, await whole(pending), 8)
        assert response.error_code == ErrorCode.NOT_COORDINATOR

    run(scenario())


@pytest.mark.parametrize("problem", [KeyError("x"), AssertionError("ours")])
def test_a_defect_in_a_deferred_response_does_not_reach_the_coordinator(
    problem: Exception,
) -> None:
    async def scenario() -> None:
        scene = Scene()

        def fail(code: ErrorCode) -> HeartbeatResponse:
            raise problem

        scene.beating.build = fail
        pending = scene.take(frame_of(HEARTBEAT, ApiKey.HEARTBEAT, 4))
        assert isinstance(pending, Pending)
        scene.beating.deferred[0].deliver(ErrorCode.NONE)
        assert scene.connection.is_closed
        assert pending.parts is None
        assert scene.dispatcher.failed_counts[ApiKey.HEARTBEAT] == 1
        assert scene.defects == ([problem] if isinstance(problem, AssertionError) else [])

    run(scenario())


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (9999, 0),
        (-1, 0),
        (ApiKey.VOTE, 0),
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0),  # its response has no error for the whole
        (ApiKey.DESCRIBE_CLUSTER, 99),
        (ApiKey.PRODUCE, 2),
    ],
)
def test_what_is_not_served_is_a_violation(key: int, version: int) -> None:
    async def scenario() -> None:
        with pytest.raises(ProtocolViolation):
            Scene().take(struct.pack(">hhih", key, version, 7, -1) + bytes(20))

    run(scenario())


@pytest.mark.parametrize(
    ("key", "version", "code"),
    [
        (ApiKey.SASL_HANDSHAKE, 1, ErrorCode.ILLEGAL_SASL_STATE),
        (ApiKey.SASL_AUTHENTICATE, 2, ErrorCode.ILLEGAL_SASL_STATE),
        (ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        (ApiKey.UPDATE_FEATURES, 2, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_what_is_not_served_is_refused_with_a_response_if_that_has_an_error(
    key: ApiKey, version: int, code: ErrorCode
) -> None:
    async def scenario() -> None:
        scene = Scene()
        header = RequestHeader(key, version, 7, None)
        answer = scene.take(bytes(request_frame(header, APIS[key].request_class()))[4:])
        assert isinstance(answer, bytes)
        _, position = parse_response_header(key, version, answer, 4)
        response = decode(APIS[key].response_class, version, answer, position)
        assert response.error_code == code
        assert not scene.connection.is_closed
        assert scene.connection.violations == [
            f"{key.name} is not served here: ApiVersions lists what is"
        ]

    run(scenario())


def test_a_version_of_api_versions_from_the_future_gets_the_table_in_version_0() -> None:
    async def scenario() -> None:
        answer = Scene().take(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"\0junk")
        assert isinstance(answer, bytes)
        response = decode(ApiVersionsResponse, 0, answer, 8)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        keys = [one.api_key for one in response.api_keys]
        assert keys == sorted(set(HANDLERS) - PRIVATE)

    run(scenario())


def test_an_answer_that_takes_time_is_a_barrier_and_arrives_later() -> None:
    async def scenario() -> None:
        scene = Scene()
        answer = scene.take(frame_of(DescribeClusterRequest(), ApiKey.DESCRIBE_CLUSTER, 0))
        assert isinstance(answer, Pending)
        assert answer.is_barrier
        await turns(3)
        assert answer.parts is None
        scene.described.outcome.set_result(DescribeClusterResponse(cluster_id="c"))
        await turns(3)
        assert isinstance(answer.parts, bytes)
        await scene.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize(
    ("key", "request_", "ends"),
    [
        (ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), False),
        (ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(), True),
    ],
)
def test_what_was_begun_is_finished_without_its_client_but_for_markers(
    key: ApiKey, request_: Any, ends: bool
) -> None:
    async def scenario() -> None:
        scene = Scene()
        answer = scene.take(frame_of(request_, key, APIS[key].versions[-1]))
        assert isinstance(answer, Pending)
        await turns(3)
        answer.abandon()
        await turns(3)
        assert scene.described.outcome.cancelled() is ends
        if not ends:
            scene.described.outcome.set_result(DescribeClusterResponse(cluster_id="c"))
        await scene.dispatcher.close()
        assert scene.defects == []

    run(scenario())


def test_a_client_that_leaves_at_once_leaves_no_coroutine_behind() -> None:
    """Python would warn of one that was never awaited, in the broker's log."""

    async def scenario() -> None:
        scene = Scene()
        key = ApiKey.WRITE_TXN_MARKERS
        answer = scene.take(frame_of(WriteTxnMarkersRequest(), key, APIS[key].versions[-1]))
        assert isinstance(answer, Pending)
        answer.abandon()
        await turns(3)
        assert scene.described.outcome.cancelled(), "the handler had begun"
        await scene.dispatcher.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(scenario())
        gc.collect()
    assert [str(one.message) for one in seen] == []


@pytest.mark.parametrize("problem", [ValueError("ours"), AssertionError("ours")])
def test_a_defect_in_a_slow_handler_closes_the_connection_and_an_assertion_ends_the_broker(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.take(frame_of(DescribeClusterRequest(), ApiKey.DESCRIBE_CLUSTER, 0))
        scene.described.outcome.set_exception(problem)
        await turns(3)
        assert scene.connection.is_closed
        assert scene.dispatcher.failed_counts == {ApiKey.DESCRIBE_CLUSTER: 1}
        assert scene.defects == ([problem] if isinstance(problem, AssertionError) else [])

    run(scenario())
    if not isinstance(problem, AssertionError):
        (said,) = caplog.records
        assert (vars(said)["api"], said.exc_info is not None) == ("DESCRIBE_CLUSTER", True)


@pytest.mark.parametrize(
    "problem",
    [IndexError("ours"), struct.error("ours"), OSError(errno.EIO, "disk"), AssertionError()],
)
def test_a_defect_in_a_hot_handler_is_not_taken_for_a_violation(problem: Exception) -> None:
    async def scenario() -> None:
        scene = Scene(problem=problem)
        with pytest.raises(RequestFailed) as raised:
            scene.take(frame_of(ProduceRequest(), ApiKey.PRODUCE, 9))
        assert raised.value.__cause__ is problem
        if isinstance(problem, AssertionError):
            assert problem.__notes__ == ["in a handler of PRODUCE"]
        assert scene.dispatcher.failed_counts == {ApiKey.PRODUCE: 1}
        assert scene.defects == ([problem] if isinstance(problem, AssertionError) else [])

    run(scenario())


@pytest.mark.parametrize("problem", [ProtocolViolation("theirs"), ConnectionResetError()])
def test_what_a_client_did_wrong_is_no_defect(problem: Exception) -> None:
    async def scenario() -> None:
        scene = Scene(problem=problem)
        with pytest.raises(type(problem)):
            scene.take(frame_of(ProduceRequest(), ApiKey.PRODUCE, 9))
        assert not scene.dispatcher.failed_counts
        assert scene.defects == []

    run(scenario())


def test_a_defect_while_a_connection_is_closed_for_another_ends_the_broker() -> None:
    class Stubborn(FakeConnection):
        def close(self) -> None:
            raise KeyError("cannot be closed")

    async def scenario() -> None:
        scene = Scene()
        scene.connection = Stubborn()
        scene.take(frame_of(DescribeClusterRequest(), ApiKey.DESCRIBE_CLUSTER, 0))
        scene.described.outcome.set_exception(ValueError("ours"))
        await turns(3)
        assert [type(defect) for defect in scene.defects] == [KeyError]

    run(scenario())


def test_a_request_of_many_megabytes_without_records_is_refused_in_its_response() -> None:
    async def scenario() -> None:
        scene = Scene()
        frame = frame_of(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0) + bytes(9 << 20)
        answer = scene.take(frame)
        assert isinstance(answer, bytes)
        refused = decode(ApiVersionsResponse, 0, answer, 8)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        (text,) = scene.connection.violations
        assert text.startswith(f"API_VERSIONS: a request of {len(frame)} bytes without records")
        assert "max.plain.request.bytes allows 8388608" in text

    run(scenario())


def test_without_a_place_for_an_error_it_closes_the_connection() -> None:
    async def scenario() -> None:
        for key, version in ((ApiKey.LIST_OFFSETS, 6), (ApiKey.FETCH, 12)):
            frame = frame_of(APIS[key].request_class(), key, version) + bytes(9 << 20)
            with pytest.raises(ProtocolViolation, match=f"{key.name}: a request of"):
                Scene().take(frame)

    run(scenario())


def offsets_of(topic_count: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t")] * topic_count)


@pytest.mark.parametrize(("name", "is_large"), [("t", False), ("t" * 100, True)])
def test_as_many_elements_as_may_be_are_answered_and_one_more_is_refused(
    name: str, is_large: bool
) -> None:
    async def scenario() -> None:
        scene = Scene(settings={"max.request.elements": "1000"})
        topics = [ListOffsetsTopic(name=name)] * 1000
        frame = frame_of(ListOffsetsRequest(topics=topics), ApiKey.LIST_OFFSETS, 6)
        assert (len(frame) >= 64 * 1024) is is_large
        answered = await whole(scene.take(frame))
        assert len(decode(ListOffsetsResponse, 6, answered, 9).topics) == 1000
        topics.append(topics[0])
        frame = frame_of(ListOffsetsRequest(topics=topics), ApiKey.LIST_OFFSETS, 6)
        text = "ListOffsetsRequest v6: more than 1000 elements, as many as max.request.elements"
        if not is_large:
            with pytest.raises(ProtocolViolation, match=text):
                scene.take(frame)
            return
        scene.take(frame)
        while not scene.connection.is_closed:
            await turns(1)
        assert scene.connection.violations[0].startswith(text)
        assert not scene.defects

    run(scenario())


async def whole(answer: Response) -> bytes:
    """The bytes of an answer, once they are there."""
    while isinstance(answer, Pending) and answer.parts is None:
        await turns(1)
    parts = answer.parts if isinstance(answer, Pending) else answer
    assert isinstance(parts, bytes)
    return parts


@pytest.mark.slow
def test_a_large_request_lets_others_have_their_turns() -> None:
    """What is counted are turns of the loop, not time."""

    async def scenario() -> None:
        scene = Scene()
        frame = frame_of(offsets_of(100_000), ApiKey.LIST_OFFSETS, 6)
        answer = scene.take(frame)
        assert isinstance(answer, Pending)
        turn_count = 0
        while answer.parts is None:
            await turns(1)
            turn_count += 1
        assert turn_count > 3 * 100_000 // 1000  # decoding, handling and encoding
        assert isinstance(answer.parts, bytes)
        assert len(decode(ListOffsetsResponse, 6, answer.parts, 9).topics) == 100_000

    run(scenario(), 120)  # as long as a busy machine takes for 100,000 topics


def test_a_response_is_timed_when_it_is_there() -> None:
    async def scenario() -> None:
        scene = Scene()
        pending = scene.take(frame_of(DescribeClusterRequest(), ApiKey.DESCRIBE_CLUSTER, 1))
        assert isinstance(pending, Pending)
        scene.clock.now_s += 2.0
        scene.described.outcome.set_result(
            DescribeClusterResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        )
        await turns(5)
        assert pending.parts is not None
        latency = scene.dispatcher.latencies[ApiKey.DESCRIBE_CLUSTER]
        assert (latency.count, latency.sum_s) == (1, 2.0)
        assert scene.dispatcher.error_counts == {(ApiKey.DESCRIBE_CLUSTER, -1): 1}

    run(scenario())
