"""`ottla.Queue` and `ottla.AsyncQueue` against a broker in a process of its own."""

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

import ottla
from compat.adapter import wait_until
from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import RawMember, set_group
from compat.test_share_requests import offsets_of
from compat.test_work_queues import dead_letters, headers_of
from compat.wire import create_topic
from ottla.client.errors import NoSuchTopic, Refused
from ottla.errors import ErrorCode
from ottla.work.errors import AlreadySettled, DelayNotEnabled, QueueClosed
from ottla.work.puts import Receipt

LONG_S = 60.0
LOCK_MS = 15_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("queue") / "data",
        {
            "offsets.topic.num.partitions": "1",
            "share.coordinator.state.topic.num.partitions": "2",
        },
    )
    served.start()
    yield served
    served.stop()


@pytest.fixture
def topic(broker: ServedBroker, new_name: Callable[[], str]) -> str:
    name = f"queue-{new_name()}"
    with connected(broker.address) as raw:
        create_topic(raw, name, 2)
        set_group(raw, name, share_record_lock_duration_ms=str(LOCK_MS))
    return name


@pytest.fixture
def queue(broker: ServedBroker, topic: str) -> Iterator[ottla.Queue]:
    with ottla.Queue(topic, servers=broker.address) as made:
        yield made


def lags(broker: ServedBroker, topic: str) -> list[int]:
    with connected(broker.address) as raw:
        return [lag for _, lag in offsets_of(raw, topic)]


def test_a_message_is_put_got_and_acknowledged(
    broker: ServedBroker, queue: ottla.Queue, topic: str
) -> None:
    receipt = queue.put("hello", key=b"k", headers={"a": "1", "b": None})
    (message,) = queue.get(wait=LONG_S)
    assert (message.value, message.key, message.deliveries) == (b"hello", b"k", 1)
    assert message.headers == (("a", b"1"), ("b", None))
    assert message.header("a") == b"1"
    assert receipt == (topic, message.partition, message.offset)
    assert message.is_held
    message.ack()
    assert message.is_settled
    assert lags(broker, topic) == [0, 0]
    assert queue.get(wait=0) == []


def test_messages_put_before_the_first_get_are_delivered(queue: ottla.Queue) -> None:
    """The group of a queue begins with the first message, and not with the next one."""
    receipts = [queue.put(str(number)) for number in range(20)]
    got: list[ottla.Message] = []
    while len(got) < 20:
        got += queue.get(max=20, wait=LONG_S)
    assert sorted(int(message.value or b"") for message in got) == list(range(20))
    places = {(message.partition, message.offset) for message in got}
    assert places == {(receipt.partition, receipt.offset) for receipt in receipts}
    for message in got:
        message.ack()


def test_leaving_a_block_acknowledges_and_an_exception_gives_back(queue: ottla.Queue) -> None:
    queue.put("once")
    with pytest.raises(ZeroDivisionError), queue.take(wait=LONG_S):
        _ = 1 / 0
    with queue.take(wait=LONG_S) as message:
        assert message.deliveries == 2
    with pytest.raises(ottla.QueueEmpty), queue.take(wait=0.1):
        pytest.fail("there is no other")


def test_what_is_settled_in_a_block_stays_so(broker: ServedBroker, queue: ottla.Queue) -> None:
    queue.put("rejected")
    with queue.take(wait=LONG_S) as message:
        message.reject("not for us")
    with pytest.raises(ottla.QueueEmpty), queue.take(wait=0.1):
        pytest.fail("it is finished")


def test_a_message_that_is_given_back_waits(queue: ottla.Queue) -> None:
    queue.put("later")
    with queue.take(wait=LONG_S) as message:
        begun_s = time.monotonic()
        message.nack(delay=1.5)
    (again,) = queue.get(wait=LONG_S)
    assert time.monotonic() - begun_s >= 1.5
    assert again.deliveries == 2
    again.ack()


def test_a_rejected_message_is_a_dead_letter(broker: ServedBroker, topic: str) -> None:
    name = f"dlq.{topic}"
    with connected(broker.address) as raw:
        create_topic(raw, name, 2, errors_deadletterqueue_group_enable="true")
        set_group(raw, topic, errors_deadletterqueue_topic_name=name)
    with ottla.Queue(topic, servers=broker.address) as queue:
        queue.put("bad", key="k")
        (message,) = queue.get(wait=LONG_S)
        message.reject("not an order")
    (found,) = dead_letters(broker, name, 1)
    assert (found.key(), found.value()) == (b"k", b"bad")
    assert headers_of(found)["ottla.dlq.cause"] == b"rejected"
    message_header = headers_of(found)["__dlq.errors.message"]
    assert message_header == b"rejected by a consumer: not an order"


def test_a_message_that_has_expired_is_not_delivered(queue: ottla.Queue) -> None:
    queue.put("late", key="k", ttl=0)
    queue.put("in time", key="k", ttl=3600)
    (message,) = queue.get(max=10, wait=LONG_S)
    assert message.value == b"in time"
    message.ack()


def test_mistakes_have_clear_errors(broker: ServedBroker, queue: ottla.Queue, topic: str) -> None:
    queue.put("one")
    (message,) = queue.get(wait=LONG_S)
    with pytest.raises(ValueError, match="0 to 86400 seconds"):
        message.nack(delay=-1)
    message.ack()
    for settle in (message.ack, message.nack, message.reject, message.extend):
        with pytest.raises(AlreadySettled, match=f"{topic}-.*before"):
            settle()
    with pytest.raises(ValueError, match="not both"):
        queue.put("x", delay=1, at=datetime.now(UTC))
    with pytest.raises(ValueError, match="time zone"):
        queue.put("x", at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="say delay="):
        queue.put("x", headers={"ottla.ttl-ms": "5"})
    with pytest.raises(ValueError, match="ttl: -1"):
        queue.put("x", ttl=-1)
    with pytest.raises(TypeError, match="bytes or text, not int"):
        queue.put(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one message"):
        queue.get(max=0)
    with pytest.raises(ValueError, match="concurrency"):
        queue.work(print, concurrency=0)
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed):
        queue.put("x")
    with pytest.raises(QueueClosed):
        queue.get()


def test_a_missing_topic_is_named(broker: ServedBroker) -> None:
    with ottla.Queue("no-such-topic", servers=broker.address) as queue:
        with pytest.raises(NoSuchTopic, match="no-such-topic"):
            queue.put("x")
        with pytest.raises(NoSuchTopic, match="no-such-topic"):
            queue.get(wait=1)
        with pytest.raises(NoSuchTopic, match="no-such-topic"):
            queue.work(print)


def test_a_delay_is_refused_where_the_topic_would_ignore_it(queue: ottla.Queue) -> None:
    with pytest.raises(DelayNotEnabled, match=r"delay\.enable"):
        queue.put("x", delay=60)
    with pytest.raises(DelayNotEnabled, match=r"delay\.enable"):
        queue.put("x", at=datetime.now(UTC) + timedelta(hours=1))
    assert queue.get(wait=0.2) == [], "nothing was sent"


def test_a_delayed_message_comes_when_it_is_due_and_not_before(
    broker: ServedBroker, new_name: Callable[[], str]
) -> None:
    name = f"queue-{new_name()}"
    with connected(broker.address) as raw:
        create_topic(raw, name, 1, delay_enable="true")
    with ottla.Queue(name, servers=broker.address) as queue:
        sent_ms = time.time_ns() // 10**6
        later = queue.put("later", delay=1.5)
        due = datetime.now(UTC) + timedelta(seconds=1)
        queue.put("at", at=due)
        queue.put("now")
        got: dict[bytes | None, ottla.Message] = {}
        while len(got) < 3:
            (message,) = queue.get(wait=LONG_S)
            got[message.value] = message
            message.ack()
        assert got[b"at"].timestamp_ms >= int(due.timestamp() * 1000)
        assert got[b"later"].timestamp_ms >= sent_ms + 1500
        assert got[b"later"].header("ottla.ticket") == str(later.offset).encode()
        assert got[b"now"].header("ottla.ticket") is None
        wait_until(lambda: lags(broker, name) == [0], "all is acknowledged")


def test_a_message_that_nobody_holds_is_given_back(queue: ottla.Queue) -> None:
    queue.put("dropped")
    assert queue.get(wait=LONG_S)[0].deliveries == 1
    gc.collect()
    (again,) = queue.get(wait=LONG_S)
    assert again.deliveries == 2
    again.ack()


def test_a_message_whose_thread_has_ended_is_given_back(queue: ottla.Queue) -> None:
    queue.put("abandoned")
    kept: list[object] = []

    def leave() -> None:
        taking = queue.take(wait=LONG_S)
        kept.extend((taking, taking.__enter__()))  # and never left

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    begun_s = time.monotonic()
    (again,) = queue.get(wait=LONG_S)
    assert time.monotonic() - begun_s < LOCK_MS / 1000 - 2, "before its lock has ended"
    assert again.deliveries == 2
    again.ack()


def test_workers_acknowledge_and_failures_come_again(
    broker: ServedBroker, queue: ottla.Queue, topic: str
) -> None:
    for number in range(12):
        queue.put(str(number))
    stop, lock = threading.Event(), threading.Lock()
    seen: list[tuple[int, int]] = []
    running: list[int] = [0, 0]  # now, and at most

    def handler(message: ottla.Message) -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
        number = int(message.value or b"")
        is_bad = number % 4 == 0 and message.deliveries == 1
        with lock:
            seen.append((number, message.deliveries))
            running[0] -= 1
            if len(seen) == 15:
                stop.set()
        if is_bad:
            raise RuntimeError("a handler that fails")

    assert queue.work(handler, concurrency=3, stop=stop) == 15
    expected = [(number, 1) for number in range(12)] + [(number, 2) for number in (0, 4, 8)]
    assert sorted(seen) == sorted(expected)
    assert running[1] <= 3
    assert lags(broker, topic) == [0, 0]


def test_a_stop_finishes_what_is_held_and_begins_nothing_new(
    broker: ServedBroker, queue: ottla.Queue, topic: str
) -> None:
    for number in range(6):
        queue.put(str(number), key="same")
    stop, is_begun, may_end = threading.Event(), threading.Barrier(3), threading.Event()
    done: list[bytes] = []

    def handler(message: ottla.Message) -> None:
        is_begun.wait(LONG_S)
        assert may_end.wait(LONG_S)
        done.append(message.value or b"")

    worker = threading.Thread(
        target=lambda: queue.work(handler, concurrency=2, stop=stop), daemon=True
    )
    worker.start()
    is_begun.wait(LONG_S)
    stop.set()
    may_end.set()
    worker.join(LONG_S)
    assert not worker.is_alive()
    assert sorted(done) == [b"0", b"1"]
    assert sorted(lags(broker, topic)) == [0, 4]
    rest = queue.get(max=10, wait=LONG_S)
    assert [message.deliveries for message in rest] == [1] * 4, "they had not been delivered"


def test_a_handler_that_exits_ends_the_work_and_gives_back(queue: ottla.Queue) -> None:
    queue.put("exit")

    def handler(message: ottla.Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        queue.work(handler)
    (again,) = queue.get(wait=LONG_S)
    assert again.deliveries == 2
    again.ack()


def test_acknowledging_after_the_lease_was_taken_away_says_so(
    broker: ServedBroker, queue: ottla.Queue, topic: str
) -> None:
    """Another session of the same member has given the message back."""
    queue.put("lost", key="k")
    (message,) = queue.get(wait=LONG_S)
    consumer = queue._core._consumer
    assert consumer is not None
    with connected(broker.address) as raw:
        thief = RawMember(raw, topic, consumer.member_id, topic)
        thief.take(max_wait_ms=0, max_records=0)
        offset, release = message.offset, 2
        assert thief.acknowledge((offset, offset, [release]), partition=message.partition) == 0
        assert thief.acknowledge(epoch=-1) == ErrorCode.NONE
    with pytest.raises(ottla.LeaseLost):
        message.ack()
    assert not message.is_held
    with pytest.raises(ottla.LeaseLost):
        message.ack()
    (again,) = queue.get(wait=LONG_S)
    assert again.deliveries == 2
    again.ack()


def test_a_queue_outlives_its_broker(broker: ServedBroker, queue: ottla.Queue, topic: str) -> None:
    """What is held is acknowledged after a crash, and what waits for messages gets the next."""
    queue.put("before", key="k")
    (held,) = queue.get(wait=LONG_S)
    waiting: list[ottla.Message] = []
    waiter = threading.Thread(target=lambda: waiting.extend(queue.get(wait=LONG_S)), daemon=True)
    waiter.start()
    broker.end(signal.SIGKILL)
    acknowledging = threading.Thread(target=held.ack, daemon=True)
    acknowledging.start()
    broker.start()
    queue.put("after", key="k")
    acknowledging.join(LONG_S)
    waiter.join(LONG_S)
    assert held.is_settled
    assert [(message.value, message.deliveries) for message in waiting] == [(b"after", 1)]
    waiting[0].ack()
    wait_until(lambda: lags(broker, topic) == [0, 0], "both are finished")


# With an event loop


def test_an_async_queue_does_all_of_it(broker: ServedBroker, topic: str) -> None:
    async def run() -> None:
        async with (
            ottla.AsyncQueue(topic, servers=broker.address) as queue,
            asyncio.timeout(LONG_S),
        ):
            receipts = await asyncio.gather(*(queue.put(str(n), key="k") for n in range(30)))
            offsets = [receipt.offset for receipt in receipts]
            assert offsets == list(range(30)), "in the order of the calls"
            first, second, third = await queue.get(max=3)
            await first.ack()
            await second.nack(delay=0)
            await third.extend()
            await third.reject("bad")
            with pytest.raises(AlreadySettled):
                await first.ack()
            with pytest.raises(ZeroDivisionError):
                async with queue.take() as message:
                    _ = 1 / 0
            assert message.is_settled
            async with queue.take() as message:
                assert (message.offset, message.deliveries) == (1, 3)
            seen: list[bytes | None] = []
            stop = asyncio.Event()

            async def handler(message: ottla.AsyncMessage) -> None:
                seen.append(message.value)
                if len(seen) == 27:
                    stop.set()

            assert await queue.work(handler, concurrency=4, stop=stop) == 27
            with pytest.raises(ottla.QueueEmpty):
                async with queue.take(wait=0):
                    pytest.fail("all are done")

    asyncio.run(run())
    assert sum(lags(broker, topic)) == 0


def test_a_cancelled_handler_gives_its_message_back(broker: ServedBroker, topic: str) -> None:
    async def run() -> None:
        async with (
            ottla.AsyncQueue(topic, servers=broker.address) as queue,
            asyncio.timeout(LONG_S),
        ):
            await queue.put("x")
            is_begun = asyncio.Event()

            async def handler(message: ottla.AsyncMessage) -> None:
                is_begun.set()
                await asyncio.Event().wait()

            working = asyncio.create_task(queue.work(handler))
            await is_begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            (again,) = await queue.get()
            assert again.deliveries == 2
            await again.ack()

    asyncio.run(run())


def test_messages_that_are_too_large_together_are_sent_in_smaller_batches(
    broker: ServedBroker, new_name: Callable[[], str]
) -> None:
    name = f"queue-{new_name()}"
    with connected(broker.address) as raw:
        create_topic(raw, name, max_message_bytes=2000)

    async def run() -> None:
        async with ottla.AsyncQueue(name, servers=broker.address) as queue:
            puts = [queue.put(f"{n}".ljust(500, "."), headers={"h": "."}) for n in range(20)]
            receipts = await asyncio.gather(*puts)
            assert [receipt.offset for receipt in receipts] == list(range(20))
            some = await asyncio.gather(
                queue.put("fits"), queue.put("." * 3000), queue.put("fits"), return_exceptions=True
            )
            assert [type(one) for one in some] == [Receipt, Refused, Receipt]

    asyncio.run(run())
