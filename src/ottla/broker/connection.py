"""A client's connection: bytes in, whole frames to the dispatcher, responses out in order."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.broker.fairness import TURN_BYTES, TURN_REQUESTS, Turns
from ottla.broker.framing import FIRST_BUFFER_BYTES, LENGTH_BYTES, PartialFrame, frame_bytes
from ottla.broker.pending import Parts, Pending, Response
from ottla.broker.receive_budget import ReceiveBudget
from ottla.broker.response_order import ResponseOrder, write_parts
from ottla.broker.writer import SocketWriter, TransportWriter, Writer
from ottla.errors import ProtocolViolation
from ottla.settings import Settings

_SHARED_BUFFER_BYTES: Final = 256 * 1024
_UNSENT_BYTES_MAX: Final = 256 * 1024  # of responses; beyond, the client must read first


class RequestFailed(Exception):
    """A handler met a defect, which has been reported: only the connection is left to be closed."""


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    @property
    def is_closing(self) -> bool: ...

    def admit(self, connection: "Connection") -> bool:
        """True if there is room for one more connection from this peer."""
        ...

    def forget(self, connection: "Connection") -> None: ...

    def note_violation(self, peer: str, text: str) -> None: ...

    def end_broker(self, defect: BaseException) -> None: ...


class TakesRequests(Protocol):
    """The dispatcher, as far as connections call it."""

    def take(self, frame: memoryview, connection: "Connection") -> Response: ...


@dataclass(frozen=True, slots=True)
class SharedByConnections:
    """The objects that all connections of a server share."""

    owner: ConnectionOwner
    loop: asyncio.AbstractEventLoop
    settings: Settings
    dispatcher: TakesRequests
    budget: ReceiveBudget
    turns: Turns
    view: memoryview  # of the buffer that bytes are received into


def receive_buffer() -> memoryview:
    """The buffer that all connections receive into, unless one has an unfinished frame."""
    return memoryview(bytearray(_SHARED_BUFFER_BYTES))


class Connection(asyncio.BufferedProtocol):
    """Reads into one buffer that all connections share; only an unfinished frame gets its own."""

    __slots__ = (
        "_backlog",
        "_frame",
        "_on_lost",
        "_order",
        "_paused",
        "_resuming",
        "_shared",
        "_transport",
        "_writer",
        "active_s",
        "peer",
    )

    def __init__(self, shared: SharedByConnections) -> None:
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._frame: PartialFrame | None = None
        self._backlog: bytearray | None = None  # frames that must wait for their turn
        self._order: ResponseOrder | None = None
        self._paused = False
        self._on_lost: Callable[[], None] | None = None
        self._resuming = False  # a turn of the loop that is to come will go on with it
        self.peer = ""
        self.active_s = 0.0

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        loop = self._shared.loop
        self.active_s = loop.time()
        if not self._shared.owner.admit(self):
            transport.abort()  # type: ignore[attr-defined]
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            try:
                self._writer = SocketWriter(loop, sock.fileno(), self._note_writable)
            except OSError:  # no descriptor is left, or the peer has gone
                self.close()
        else:
            self._writer = TransportWriter(transport)  # type: ignore[arg-type]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view if self._frame is None else self._frame.room

    def buffer_updated(self, nbytes: int) -> None:
        writer, shared = self._writer, self._shared
        if writer is None or shared.owner.is_closing:
            return  # requests are not taken any more; the transport has yet to notice
        self.active_s = shared.loop.time()
        try:
            if self._frame is None:
                if self._take_frames(shared.view, nbytes) >= TURN_BYTES:
                    self._yield_loop()
            else:
                self._continue_frame(self._frame, nbytes)
            if writer.queued_bytes:
                shared.turns.flush_soon(self)
            if self._backlog is not None:
                self._yield_loop()
        except Exception as problem:
            self._end(problem)

    def eof_received(self) -> bool:
        return False

    def resume_writing(self) -> None:
        self._note_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._shared.owner.forget(self)
        if self._on_lost is not None:
            self._on_lost()

    def on_lost(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, once, when the connection is gone."""
        self._on_lost = notify

    # Called by the server

    def close(self) -> None:
        """End the connection now; responses that are not sent yet are dropped."""
        self._release()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def finish(self) -> bool:
        """True if the peer has all responses; then it learns that no more will come.

        It closes its side. Were ours closed while requests lie unread, the system would reset
        the connection, and with it drop responses that the peer has not read either.
        """
        if self._writer is None or not self.is_idle:
            return self._writer is None
        try:
            self._writer.finish()
        except OSError:
            self.close()  # the peer has gone
        return True

    @property
    def is_idle(self) -> bool:
        """True if no response is pending and none is left to send."""
        return not self._order and (self._writer is None or self._writer.queued_bytes == 0)

    @property
    def is_owed(self) -> bool:
        """True if a response is pending, and the peer has read all others."""
        return bool(self._order) and self._writer is not None and not self._writer.queued_bytes

    @property
    def has_left(self) -> bool:
        """True if the peer hung up while we are not reading, and so would not notice."""
        return self._paused and self.is_owed and self._writer is not None and self._writer.has_left

    @property
    def begun_s(self) -> float:
        """When the unfinished frame began to arrive; 0 when there is none."""
        return 0.0 if self._frame is None else self._frame.begun_s

    def flush_responses(self) -> None:
        """Send the responses whose turn has come; then take requests that had to wait."""
        writer = self._writer
        if writer is None:
            return
        try:
            if self._order:
                self._order.release(writer)
            if writer.queued_bytes:
                writer.flush()
            if self._paused:
                self._go_on()
        except Exception as problem:
            self._end(problem)

    def take_large(self) -> None:
        """Take the request that was put off until other connections had their turn."""
        self._resuming = False
        writer, shared = self._writer, self._shared
        if writer is None or shared.owner.is_closing:
            return  # while it waited
        assert self._frame is not None
        try:
            self._take_whole(self._frame)
            if writer.queued_bytes:
                shared.turns.flush_soon(self)
            if self._backlog is None:
                self._resume_if_free()
        except Exception as problem:
            self._end(problem)

    def note_violation(self, text: str) -> None:
        """A request was refused with a response: it counts like one that ends the connection."""
        self._shared.owner.note_violation(self.peer, text)

    def end(self, violation: ProtocolViolation) -> None:
        """A request with a pending response cannot have one."""
        self._end(violation)

    def _end(self, problem: Exception) -> None:
        """Close: a client's bytes, or a handler's defect, end this connection and no other.

        Anything else is a defect of what connections share.
        """
        self.close()
        if isinstance(problem, ProtocolViolation):
            self._shared.owner.note_violation(self.peer, str(problem))
        elif not isinstance(problem, (OSError, RequestFailed)):  # OSError: the peer has gone
            self._shared.owner.end_broker(problem)

    # Frames

    def _take_frames(self, view: memoryview, end: int) -> int:
        """Dispatch every whole frame in `view` before `end`; keep the rest.

        Returns how many bytes were dispatched.
        """
        shared, writer = self._shared, self._writer
        assert writer is not None
        request_bytes_max = shared.settings.broker.request_bytes_max
        position = 0
        left = TURN_REQUESTS
        while end - position >= LENGTH_BYTES:
            frame_end = position + frame_bytes(view, position, request_bytes_max)
            if frame_end > end:
                break
            if not left or ((self._order or writer.queued_bytes) and self._must_wait()):
                self._hold(view[position:end])
                return position
            response = shared.dispatcher.take(view[position + LENGTH_BYTES : frame_end], self)
            if isinstance(response, bytes) and not self._order:
                writer.queue(response)
            elif response is not None:
                self._queue(response)
            left -= 1
            position = frame_end
        if position < end:
            self._begin_frame(view[position:end])
        return position

    def _begin_frame(self, head: memoryview) -> None:
        shared = self._shared
        # Its time counts from now and not from when its bytes came: it may have waited.
        self._frame = PartialFrame(
            head,
            shared.loop.time(),
            shared.budget.pool,
            shared.settings.broker.request_bytes_max,
        )
        self._note_grown(self._frame, len(self._frame.buffer))

    def _continue_frame(self, frame: PartialFrame, nbytes: int) -> None:
        grown_bytes = frame.add(nbytes)
        if grown_bytes:
            self._note_grown(frame, grown_bytes)
        if not frame.is_whole:
            return
        if frame.size >= TURN_BYTES:
            self._pause()
            self._resuming = True
            self._shared.turns.take_later(self)
        else:
            self._take_whole(frame)

    def _note_grown(self, frame: PartialFrame, grown_bytes: int) -> None:
        budget = self._shared.budget
        budget.add(grown_bytes)
        if len(frame.buffer) > FIRST_BUFFER_BYTES and budget.must_wait(self):
            self._pause()

    def _take_whole(self, frame: PartialFrame) -> None:
        """Dispatch the frame that has arrived in a buffer of its own."""
        self._drop_frame()
        self._take_frames(memoryview(frame.buffer), frame.size)
        self._shared.budget.pool.give_back(frame.buffer)

    def _drop_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            self._shared.budget.add(-len(frame.buffer))
            self._shared.budget.finish(self)

    # Requests and responses

    def _queue(self, response: Parts | Pending) -> None:
        """Queue a response in request order: behind pending ones if any, else write it now."""
        if isinstance(response, Pending):
            assert response.parts is None, "a response that is complete is not pending"
            response.on_complete(self._note_complete)
            if self._order is None:
                self._order = ResponseOrder()
            self._order.append(response)
        elif self._order:
            self._order.append(response)
        else:
            assert self._writer is not None
            write_parts(response, self._writer)

    def _must_wait(self) -> bool:
        """True if the next request must wait: for a response, or for the client to read."""
        assert self._writer is not None
        if self._order and self._order.is_blocked:
            return True
        return self._writer.queued_bytes > _UNSENT_BYTES_MAX

    def _hold(self, rest: memoryview) -> None:
        budget = self._shared.budget
        if budget.is_exceeded:
            raise ProtocolViolation("requests pile up behind responses, here and elsewhere")
        budget.add(len(rest))
        self._backlog = bytearray(rest)
        self._pause()

    def _go_on(self) -> None:
        """Take the requests that waited for responses to leave, or for their turn."""
        if self._shared.owner.is_closing:
            self._drop_backlog()  # reading on shows when the peer hangs up
        if self._backlog is not None and not self._resuming and not self._must_wait():
            backlog, self._backlog = self._backlog, None
            self._shared.budget.add(-len(backlog))
            taken_bytes = self._take_frames(memoryview(backlog), len(backlog))
            self._flush()
            if self._backlog is not None or taken_bytes >= TURN_BYTES:
                self._yield_loop()
        if self._backlog is None and self._paused:
            self._resume_if_free()

    def _note_complete(self) -> None:
        self._shared.turns.flush_soon(self)

    def _flush(self) -> None:
        writer = self._writer
        if writer is None:
            return
        if self._order:
            self._order.release(writer)
        if writer.queued_bytes:
            writer.flush()

    def _note_writable(self) -> None:
        """The peer has read some of what was sent: send on."""
        self.active_s = self._shared.loop.time()
        self.flush_responses()

    # Pausing

    def _yield_loop(self) -> None:
        """Read on in a later turn: libuv reads one socket up to 32 times a turn, and a bulk
        writer must not starve others."""
        if self._resuming:
            return
        self._pause()
        self._resuming = True
        self._shared.loop.call_soon(self._resume_after_yield)

    def _resume_after_yield(self) -> None:
        self._resuming = False
        if self._writer is None:
            return
        try:
            self._go_on()
        except Exception as problem:
            self._end(problem)

    def _resume_if_free(self) -> None:
        if not self._resuming and not self._shared.budget.is_waiting(self):
            self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def note_budget(self) -> None:
        """There is memory again for the request that this connection is receiving."""
        if self._backlog is None:
            self._resume_if_free()

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self._shared.budget.add(-len(self._backlog))
            self._backlog = None

    def _release(self) -> None:
        self._drop_frame()
        self._drop_backlog()
        if self._order is not None:
            self._order.abandon()
            self._order = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
