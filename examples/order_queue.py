"""A promotion's order queue under a spike: orders come at once, and are worked off in turn.

    python examples/order_queue.py [HOST:PORT]

Three hundred orders arrive together for fifty pieces. Each is in the queue, on disk, before
its customer is told so; eight workers take them one by one, and each order is decided once.
Without an address it starts a broker of its own, in this process.
"""

import asyncio
import contextlib
import sys
from collections import Counter

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

import ottla
import ottla.testing

TOPIC = "promotion-orders"
ORDERS = 300
PIECES = 50
WORKERS = 8


def create_topic(address: str) -> None:
    """Make the topic, unless it is there."""
    topic = NewTopic(TOPIC, num_partitions=4, config={"delete.acknowledged": "true"})
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([topic]).values():
        try:
            made.result()
        except confluent_kafka.KafkaException as problem:
            if problem.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise


async def order(queue: ottla.AsyncQueue) -> None:
    """Send all orders at once; what comes later than a minute is not decided any more."""
    numbers = range(ORDERS)
    receipts = await asyncio.gather(*(queue.put(f"order {n}", ttl=60) for n in numbers))
    print(f"{len(receipts)} orders in the queue")


async def decide(queue: ottla.AsyncQueue) -> Counter[bytes | None]:
    """Decide every order: who gets a piece, and who does not."""
    decided = Counter[bytes | None]()
    stock = iter(range(PIECES))
    sold: list[bytes | None] = []
    stop = asyncio.Event()

    async def handler(message: ottla.AsyncMessage) -> None:
        if next(stock, None) is not None:
            sold.append(message.value)
        decided[message.value] += 1
        if len(decided) == ORDERS:
            stop.set()

    await queue.work(handler, concurrency=WORKERS, stop=stop)
    print(f"{len(sold)} sold, {len(decided) - len(sold)} sold out")
    return decided


async def run(address: str) -> None:
    async with ottla.AsyncQueue(TOPIC, servers=address) as queue:
        _, decided = await asyncio.gather(order(queue), decide(queue))
    if set(decided.values()) != {1}:
        sys.exit("an order was decided twice")
    print("each order once")


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        create_topic(address)
        asyncio.run(run(address))


if __name__ == "__main__":
    main()
