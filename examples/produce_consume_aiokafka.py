"""Write three records and read them back with aiokafka.

    python examples/produce_consume_aiokafka.py [HOST:PORT]

Without an address it starts a broker of its own, in this process.
"""

import asyncio
import contextlib
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import ottla.testing

TOPIC = "greetings"


async def produce(address: str, values: list[str]) -> list[int]:
    """Write the values to partition 0 and wait until all are on disk; their offsets."""
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        sent = [await producer.send(TOPIC, value.encode(), partition=0) for value in values]
        return [(await record).offset for record in sent]


async def consume(address: str, first_offset: int, count: int) -> list[str]:
    """Read so many records of partition 0, from an offset on."""
    async with AIOKafkaConsumer(bootstrap_servers=address) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, first_offset)
        return [(await consumer.getone()).value.decode() for _ in range(count)]


async def run(address: str) -> None:
    offsets = await produce(address, ["hello", "from", "aiokafka"])
    print(f"wrote {len(offsets)} records")
    print("read", *await consume(address, offsets[0], len(offsets)))


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        asyncio.run(run(address))


if __name__ == "__main__":
    main()
