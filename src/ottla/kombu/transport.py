"""The transport: kombu's virtual channels over share groups.

Acknowledging, rejecting and requeueing are acknowledgements of a share group: nothing is published
again. What a channel holds when it closes is given back, as if it had not been delivered.
"""

import contextlib
import logging
import queue as queues
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from kombu.transport import virtual
from kombu.utils.json import loads

from ottla import __version__
from ottla.client.errors import ClientError
from ottla.kombu.routes import Binding
from ottla.kombu.session import Payload, Session
from ottla.work.errors import LeaseLost, QueueError
from ottla.work.leases import Lease
from ottla.work.loop_thread import LoopThread
from ottla.work.settlement import DONE, Settlement, given_back, rejected

log = logging.getLogger("ottla.kombu")

DEFAULT_PORT: Final = 9092
_WAIT_S: Final = 0.2  # for messages of all durable queues of a channel together
_FETCH_MAX: Final = 50  # messages that are received at once, if the prefetch limit allows
_CLOSE_S: Final = 10.0

Result = TypeVar("Result")


class QoS(virtual.QoS):
    """The messages of a channel that are not acknowledged yet."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag, DONE)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        how = given_back(0, counts=False) if requeue else rejected("rejected by a worker")
        self.channel.settle(delivery_tag, how)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[object]:
        """Give everything back."""
        self._flush()
        self._delivered.clear()
        self.channel.give_back_all()
        return []


class Channel(virtual.Channel):
    """A channel; its consumers share the messages that it holds."""

    QoS = QoS
    do_restore = False
    supports_fanout = True

    def __init__(self, connection: "Transport", **options: Any) -> None:
        super().__init__(connection, **options)
        self._leases: dict[str, tuple[str, Lease]] = {}  # with their queues, by delivery tag
        self._buffers: dict[str, deque[tuple[Payload, Lease]]] = {}
        self._unacknowledged: set[str] = set()  # queues whose consumers do not acknowledge

    @property
    def session(self) -> Session:
        session: Session | None = getattr(self.connection, "session", None)
        if session is None:
            raise ConnectionError("the connection is closed")
        return session

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        thread: LoopThread = self.connection.thread
        return thread.call(work)

    # Queues

    def _new_queue(self, queue: str, **options: Any) -> None:
        arguments = options.get("arguments") or {}
        is_transient = (
            options.get("auto_delete")
            or options.get("exclusive")
            or options.get("durable") is False
            or "x-expires" in arguments
        )
        self._call(self.session.declare(queue, is_durable=not is_transient))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return self.session.is_local(queue) or self._call(self.session.exists(queue))

    def _size(self, queue: str) -> int:
        return self._call(self.session.size(queue))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange).type
        self._call(self.session.bind(Binding(exchange, kind, routing_key or "", queue)))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange).type
        self._call(self.session.unbind(Binding(exchange, kind, routing_key or "", queue)))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        if not (if_empty and self._size(queue)):
            self._call(self.session.delete(queue))

    def _purge(self, queue: str) -> int:
        """Acknowledge everything that a consumer could get now."""
        count = 0
        if self.session.is_local(queue):
            with contextlib.suppress(queues.Empty):
                while True:
                    self.session.take_local(queue)
                    count += 1
            return count
        core = self.session.core(queue)
        while leases := self._call(self.session.get(queue, _FETCH_MAX, _WAIT_S)):
            for lease in leases:
                self._call(core.settle(lease, DONE))
            count += len(leases)
        return count

    # Messages

    def basic_publish(
        self, message: Payload, exchange: str, routing_key: str, **options: Any
    ) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        kind = self.typeof(exchange).type if exchange else "direct"
        self._call(self.session.publish(message, exchange or "", routing_key or "", kind))

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> None:
        if no_ack:
            self._unacknowledged.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._unacknowledged.discard(queue)
            for _, lease in self._buffers.pop(queue, ()):
                self._submit(queue, lease, given_back(0, counts=False))

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        try:
            payload = self._get(queue)
        except queues.Empty:
            return None
        message = self.Message(payload, channel=self)
        self.qos.append(message, message.delivery_tag)
        if no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        """The next message; raises `queue.Empty` if there is none within a short time."""
        if self.session.is_local(queue):
            payload = dict(self.session.take_local(queue))
            return _tagged(payload, self._next_delivery_tag())
        buffer = self._buffers.setdefault(queue, deque())
        if not buffer:
            wanted = min(self._wanted(queue), _FETCH_MAX)
            wait_s = _WAIT_S / max(len(self._active_queues), 1)
            for lease in self._call(self.session.get(queue, wanted, wait_s)):
                payload = loads(lease.record.record.value or b"{}")
                buffer.append((payload, lease))
        if not buffer:
            raise queues.Empty
        payload, lease = buffer.popleft()
        tag = self._next_delivery_tag()
        if queue in self._unacknowledged:
            self._submit(queue, lease, DONE)
        else:
            self._leases[tag] = queue, lease
        payload["redelivered"] = lease.record.delivery_count > 1
        payload["properties"]["delivery_info"]["redelivered"] = payload["redelivered"]
        return _tagged(payload, tag)

    def _wanted(self, queue: str) -> int:
        """How many messages of a queue may be received: one, if it is not consumed."""
        if queue not in self._active_queues:
            return 1
        allowed: int | None = self.qos.can_consume_max_estimate()
        return _FETCH_MAX if allowed is None else max(allowed, 1)

    def settle(self, delivery_tag: str, settlement: Settlement) -> None:
        """Acknowledge, reject or give back a message; messages in memory need none of it."""
        held = self._leases.pop(delivery_tag, None)
        if held is not None:
            self._submit(*held, settlement)

    def give_back_all(self) -> None:
        """Give back what is held, as if it had not been delivered."""
        for tag in list(self._leases):
            self.settle(tag, given_back(0, counts=False))
        for queue in list(self._buffers):
            for _, lease in self._buffers.pop(queue):
                self._submit(queue, lease, given_back(0, counts=False))

    def _submit(self, queue: str, lease: Lease, settlement: Settlement) -> None:
        """Settle without waiting: if it fails, the message is delivered again."""
        self.connection.settle(self.session.core(queue).settle(lease, settlement), lease)

    def close(self) -> None:
        if not self.closed and self.connection is not None:
            self.give_back_all()
        super().close()


class Transport(virtual.Transport):
    """Owner of a thread with an event loop and of a session, from its first use on."""

    Channel = Channel
    default_port = DEFAULT_PORT
    polling_interval = 0.05
    driver_type = "ottla"
    driver_name = "ottla"
    connection_errors = (*virtual.Transport.connection_errors, ClientError, QueueError)
    channel_errors = virtual.Transport.channel_errors
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.thread: LoopThread | None = None
        self.session: Session | None = None
        self._settling: dict[Future[None], None] = {}

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Any:
        self.thread = LoopThread("the kombu transport")
        host, port = self.client.hostname or "127.0.0.1", self.client.port or DEFAULT_PORT
        servers = self.client.transport_options.get("servers") or f"{host}:{port}"
        self.session = Session(servers)
        try:
            self.thread.call(self.session.open())
        except BaseException:
            self._end()
            raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self._end()

    def settle(self, work: Coroutine[Any, Any, None], lease: Lease) -> None:
        """Run a settlement; a failure is logged."""
        assert self.thread is not None, "a message was received"
        future = self.thread.submit(work)
        self._settling[future] = None
        future.add_done_callback(partial(self._note_settled, lease))

    def _note_settled(self, lease: Lease, future: "Future[None]") -> None:
        self._settling.pop(future, None)
        problem = None if future.cancelled() else future.exception()
        if isinstance(problem, LeaseLost):
            log.warning("message is delivered again", extra={"reason": problem})
        elif problem is not None:
            log.error("message not settled", extra={"lease": lease.name, "reason": problem})

    def _end(self) -> None:
        thread, session = self.thread, self.session
        if thread is None or session is None:
            return
        for future in list(self._settling):
            with contextlib.suppress(Exception):
                future.result(_CLOSE_S)
        self.thread = self.session = None
        thread.close(session.close())


def _tagged(payload: Payload, tag: str) -> Payload:
    """A message with a delivery tag of its own."""
    return {**payload, "properties": {**payload["properties"], "delivery_tag": tag}}
