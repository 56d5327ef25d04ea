"""Read orders, write invoices, and count every order exactly once, with aiokafka.

    python examples/exactly_once_aiokafka.py [HOST:PORT]

As exactly_once_confluent.py, with one difference: aiokafka does not tell the broker for which
member of a group it commits. So this program is given its partitions instead of sharing them in
a group, and its transactional id, which fences the one before it, goes with them.
Without an address it starts a broker of its own, in this process.
"""

import asyncio
import contextlib
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import ottla.testing

COUNT = 20
BATCH = 5


class Crash(Exception):
    """What happens to programs."""


async def place_orders(address: str, orders: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
        for number in range(COUNT):
            await producer.send(orders, str(number).encode(), partition=0)


async def write_invoices(address: str, orders: str, invoices: str, crash_after: int) -> None:
    """Turn orders into invoices until all are done, or until it crashes."""
    partition = TopicPartition(orders, 0)
    async with (
        # First the producer: once it is there, nothing of the one before is open any more.
        AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=f"invoices-of-{orders}-0"
        ) as producer,
        AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=f"billing-{orders}",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.assign([partition])
        done = await consumer.committed(partition) or 0
        while done < COUNT:
            records = (await consumer.getmany(timeout_ms=10_000, max_records=BATCH))[partition]
            async with producer.transaction():  # commits at the end, aborts on an exception
                for record in records:
                    crash_after -= 1
                    if crash_after == 0:
                        raise Crash
                    invoice = f"invoice for order {record.value.decode()}"
                    await producer.send(invoices, invoice.encode(), partition=0)
                done = records[-1].offset + 1
                await producer.send_offsets_to_transaction({partition: done}, f"billing-{orders}")


async def read_invoices(address: str, invoices: str) -> list[str]:
    """Everything up to the last stable offset, without what was aborted."""
    partition = TopicPartition(invoices, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed"
    ) as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[str] = []
        while records := (await consumer.getmany(timeout_ms=1000)).get(partition):
            found += [record.value.decode() for record in records]
        return found


async def run(address: str) -> None:
    orders, invoices = f"orders-{uuid.uuid1()}", f"invoices-{uuid.uuid1()}"
    await place_orders(address, orders)
    for crash_after in (1, BATCH + 3, COUNT + 1):
        try:
            await write_invoices(address, orders, invoices, crash_after)
        except Crash:
            print(f"crashed, with {len(await read_invoices(address, invoices))} invoices written")
    found = await read_invoices(address, invoices)
    print(f"{COUNT} orders, {len(found)} invoices, {len(set(found))} of them different")


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        asyncio.run(run(address))


if __name__ == "__main__":
    main()
