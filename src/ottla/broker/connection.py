"""One client's connection: bytes in, whole frames to the dispatcher, answers out in order."""

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from ottla.broker.pending import Parts, Pending, Response
from ottla.broker.writer import SocketWriter, TransportWriter, Writer
from ottla.errors import ProtocolViolation

if TYPE_CHECKING:
    from ottla.broker.server import Server

_SIZE: Final = Struct(">i")
_FRAME_BYTES_MIN: Final = 8  # api key, version and correlation id
_TURN_BYTES: Final = 64 * 1024  # of requests; beyond, others get the loop in between
_TURN_REQUESTS: Final = 500  # and after so many requests, however small
_ANSWER_BYTES_MAX: Final = 256 * 1024  # unsent answers; beyond, the client must read first
_PENDING_MAX: Final = 256  # unanswered produce requests; beyond, reading stops
_FIRST_BUFFER_BYTES: Final = 4096


class RequestFailed(Exception):
    """A handler met a defect, which has been reported: only the connection is left to be closed."""


class Connection(asyncio.BufferedProtocol):
    """Reads into one buffer that all connections share; only an unfinished frame gets its own.

    Memory is given to a frame as its bytes arrive, never because a client announced a size.
    """

    __slots__ = (
        "_backlog",
        "_buffer",
        "_filled",
        "_order",
        "_paused",
        "_resuming",
        "_server",
        "_size",
        "_transport",
        "_writer",
        "active_s",
        "begun_s",
        "peer",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._buffer: bytearray | None = None  # an unfinished frame, with its length prefix
        self._filled = 0
        self._size = 0  # of the unfinished frame, with its prefix; 4 until that is known
        self._backlog: bytearray | None = None  # frames that must wait for their turn
        self._order: deque[Pending | Parts] | None = None
        self._paused = False
        self._resuming = False  # a turn of the loop that is to come will go on with it
        self.peer = ""
        self.active_s = 0.0
        self.begun_s = 0.0  # when the unfinished frame began; 0 when there is none

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.active_s = self._server.loop.time()
        if not self._server.admit(self):
            transport.abort()  # type: ignore[attr-defined]
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            try:
                self._writer = SocketWriter(self._server.loop, sock.fileno(), self._note_writable)
            except OSError:  # no descriptor is left, or the peer has gone
                self.close()
        else:
            self._writer = TransportWriter(transport)  # type: ignore[arg-type]

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._buffer is None:
            return self._server.shared_view
        return memoryview(self._buffer)[self._filled : self._size]

    def buffer_updated(self, nbytes: int) -> None:
        writer = self._writer
        server = self._server
        if writer is None or server.is_closing:
            return  # nobody answers any more, or never did; the transport has yet to notice
        self.active_s = server.loop.time()
        try:
            if self._buffer is None:
                if self._take_frames(server.shared_view, nbytes) >= _TURN_BYTES:
                    self._yield_loop()
            else:
                self._filled += nbytes
                if self._filled == min(len(self._buffer), self._size):
                    self._continue_frame()
            if writer.queued_bytes or self._order:
                server.flush_soon(self)
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
        self._server.forget(self)

    # What the server calls

    def close(self) -> None:
        """End the connection now; answers that are not sent yet are dropped."""
        self._release()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def finish(self) -> bool:
        """Whether the peer has all answers; then it is told that no more will come.

        It closes its side. Were ours closed while requests lie unread, the system would reset
        the connection, and with it drop answers that the peer has not read either.
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
        """Nothing is being answered and nothing is left to send."""
        return not self._order and (self._writer is None or self._writer.queued_bytes == 0)

    @property
    def is_owed(self) -> bool:
        """It is our turn: an answer is being made, and the peer has read all others."""
        return bool(self._order) and self._writer is not None and not self._writer.queued_bytes

    @property
    def has_left(self) -> bool:
        """The peer hung up, and we are not reading and would not notice."""
        return self._paused and self.is_owed and self._writer is not None and self._writer.has_left

    def flush_answers(self) -> None:
        """Send the answers whose turn has come; then go on with requests that had to wait."""
        writer = self._writer
        if writer is None:
            return
        try:
            if self._order:
                self._flush()
            else:
                writer.flush()
            if self._paused:
                self._go_on()
        except Exception as problem:
            self._end(problem)

    def take_large(self) -> None:
        """Take the request that was put off until others had their turn."""
        self._resuming = False
        writer = self._writer
        if writer is None or self._server.is_closing:
            return  # while it waited
        try:
            self._take_whole()
            if writer.queued_bytes or self._order:
                self._server.flush_soon(self)
            if self._backlog is None:
                self._resume_if_free()
        except Exception as problem:
            self._end(problem)

    def note_violation(self, text: str) -> None:
        """A request was refused and answered: it counts like one that ends the connection."""
        self._server.note_violation(self.peer, text)

    def end(self, violation: ProtocolViolation) -> None:
        """A request that was promised a response cannot have one."""
        self._end(violation)

    def _end(self, problem: Exception) -> None:
        """What a client sent, or a handler made of it, ends this connection and no other.

        Anything else is a defect of what connections share.
        """
        self.close()
        if isinstance(problem, ProtocolViolation):
            self._server.note_violation(self.peer, str(problem))
        elif not isinstance(problem, (OSError, RequestFailed)):  # OSError: the peer has gone
            self._server.end_broker(problem)

    # Frames

    def _take_frames(self, view: memoryview, end: int) -> int:
        """Dispatch every whole frame in `view` before `end`; keep the rest.

        Returns how many bytes were dispatched.
        """
        server, writer = self._server, self._writer
        assert writer is not None
        position = 0
        left = _TURN_REQUESTS
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(view, position)
            if not _FRAME_BYTES_MIN <= size <= server.settings.broker.request_bytes_max:
                raise ProtocolViolation(f"a frame of {size} bytes")
            frame_end = position + 4 + size
            if frame_end > end:
                break
            if not left or ((self._order or writer.queued_bytes) and self._must_wait()):
                self._hold(view[position:end])
                return position
            answer: Response = server.dispatch(view[position + 4 : frame_end], self)
            if isinstance(answer, bytes) and not self._order:
                writer.queue(answer)
            elif answer is not None:
                self._keep_place(answer)
            left -= 1
            position = frame_end
        if position < end:
            self._begin_frame(view[position:end])
        return position

    def _begin_frame(self, head: memoryview) -> None:
        self.begun_s = self._server.loop.time()  # not when its bytes came: it may have waited
        self._filled = len(head)
        self._size = 4 + _SIZE.unpack_from(head)[0] if len(head) >= 4 else 4
        self._buffer = bytearray(0)
        self._grow(head)

    def _continue_frame(self) -> None:
        """The unfinished frame's buffer is full: it is whole, or needs more room."""
        assert self._buffer is not None
        if self._size == 4:
            (size,) = _SIZE.unpack_from(self._buffer)
            if not _FRAME_BYTES_MIN <= size <= self._server.settings.broker.request_bytes_max:
                raise ProtocolViolation(f"a frame of {size} bytes")
            self._size = 4 + size
        if self._filled < self._size:
            self._grow(memoryview(self._buffer)[: self._filled])
        elif self._size >= _TURN_BYTES:
            self._pause()
            self._resuming = True
            self._server.take_later(self)
        else:
            self._take_whole()

    def _take_whole(self) -> None:
        """Dispatch the frame that has arrived in a buffer of its own."""
        assert self._buffer is not None
        buffer, size = self._buffer, self._size
        self._drop_buffer()
        self._take_frames(memoryview(buffer), size)
        self._server.buffers.give_back(buffer)

    def _grow(self, head: memoryview) -> None:
        """Room for four times of what has arrived, so that a slow sender holds little."""
        assert self._buffer is not None
        room = min(self._size, max(_FIRST_BUFFER_BYTES, 4 * self._filled))
        grown = self._server.buffers.take(room)
        grown[: len(head)] = head
        self._server.note_buffered(len(grown) - len(self._buffer))
        self._buffer = grown
        if room > _FIRST_BUFFER_BYTES and self._server.must_wait_for_budget(self):
            self._pause()

    def _drop_buffer(self) -> None:
        if self._buffer is not None:
            self._server.note_buffered(-len(self._buffer))
            self._server.note_finished(self)
        self._buffer = None
        self._filled = 0
        self.begun_s = 0.0

    # Requests and answers

    def _keep_place(self, answer: Parts | Pending) -> None:
        """Behind answers that are not there yet; at once if there are none."""
        if isinstance(answer, Pending):
            answer.on_complete(self._note_answered)
            if self._order is None:
                self._order = deque()
            self._order.append(answer)
        elif self._order:
            self._order.append(answer)
        else:
            self._queue(answer)

    def _must_wait(self) -> bool:
        """Whether the next request must wait: for a barrier, or for the client to read."""
        assert self._writer is not None
        order = self._order
        if order:
            last = order[-1]
            if isinstance(last, Pending) and last.is_barrier and last.parts is None:
                return True
            if len(order) >= _PENDING_MAX:
                return True
        return self._writer.queued_bytes > _ANSWER_BYTES_MAX

    def _hold(self, rest: memoryview) -> None:
        if self._server.is_over_budget:
            raise ProtocolViolation("requests pile up behind answers, here and elsewhere")
        self._server.note_buffered(len(rest))
        self._backlog = bytearray(rest)
        self._pause()

    def _go_on(self) -> None:
        """Answers have left, or it is our turn again: take the requests that waited for that."""
        if self._backlog is not None and not self._resuming and not self._must_wait():
            backlog, self._backlog = self._backlog, None
            self._server.note_buffered(-len(backlog))
            taken_bytes = self._take_frames(memoryview(backlog), len(backlog))
            self._flush()
            if self._backlog is not None or taken_bytes >= _TURN_BYTES:
                self._yield_loop()
        if self._backlog is None and self._paused:
            self._resume_if_free()

    def _note_answered(self) -> None:
        self._server.flush_soon(self)

    def _flush(self) -> None:
        writer, order = self._writer, self._order
        while order:
            head = order[0]
            if isinstance(head, Pending):
                if head.parts is None:
                    break
                self._queue(head.parts)
            else:
                self._queue(head)
            order.popleft()
        if writer is not None and writer.queued_bytes:
            writer.flush()

    def _queue(self, answer: Parts) -> None:
        assert self._writer is not None
        if isinstance(answer, bytes):
            self._writer.queue(answer)
        else:
            for part in answer:
                self._writer.queue(part)

    def _note_writable(self) -> None:
        """The peer has read some of what was sent: send on."""
        self.active_s = self._server.loop.time()
        self.flush_answers()

    # Flow

    def _yield_loop(self) -> None:
        """libuv reads one socket up to 32 times a turn; a bulk writer must not starve others."""
        if self._resuming:
            return
        self._pause()
        self._resuming = True
        self._server.loop.call_soon(self._resume_after_yield)

    def _resume_after_yield(self) -> None:
        self._resuming = False
        if self._writer is None:
            return
        try:
            self._go_on()
        except Exception as problem:
            self._end(problem)

    def _resume_if_free(self) -> None:
        if not self._resuming and not self._server.is_waiting_for_budget(self):
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
        """There is room again for the frame this connection is receiving."""
        if self._backlog is None:
            self._resume_if_free()

    def _release(self) -> None:
        self._drop_buffer()
        if self._backlog is not None:
            self._server.note_buffered(-len(self._backlog))
            self._backlog = None
        for answer in self._order or ():
            if isinstance(answer, Pending):
                answer.abandon()
        self._order = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
