"""Read orders, write invoices, and count every order exactly once, with confluent-kafka.

    python examples/exactly_once_confluent.py [HOST:PORT]

The invoices and how far the orders were read are one transaction: both are there, or neither.
The program fails twice on its way, once before it has written and once in the middle of a
transaction, and begins again as a program that crashed would. Every order still has one invoice.
Without an address it starts a broker of its own, in this process.
"""

import contextlib
import sys
import uuid

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import ottla.testing

COUNT = 20
BATCH = 5


class Crash(Exception):
    """What happens to programs."""


def place_orders(address: str, orders: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(orders, str(number))
    producer.flush()


def write_invoices(address: str, orders: str, invoices: str, crash_after: int) -> None:
    """Turn orders into invoices until all are done, or until it crashes."""
    # The same name in every run: whoever comes next ends what this one leaves open.
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": f"invoices-of-{orders}"}
    )
    producer.init_transactions(30)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"billing-{orders}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([orders])
    try:
        while messages := consumer.consume(BATCH, timeout=30):
            producer.begin_transaction()
            for message in messages:
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                crash_after -= 1
                if crash_after == 0:
                    raise Crash
                producer.produce(invoices, f"invoice for order {(message.value() or b'').decode()}")
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            producer.commit_transaction(30)
            if int(messages[-1].value() or b"") == COUNT - 1:
                return
    finally:
        consumer.close()


def read_invoices(address: str, invoices: str) -> list[str]:
    """Everything up to the last stable offset, without what was aborted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "not used",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(invoices, 0, 0)])
    found: list[str] = []
    is_at_end = False
    # A commit is answered before readers see it: at the end, wait a moment for more.
    while (message := consumer.poll(1 if is_at_end else 30)) is not None:
        is_at_end = message.error() is not None
        if not is_at_end:
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        orders, invoices = f"orders-{uuid.uuid1()}", f"invoices-{uuid.uuid1()}"
        admin = AdminClient({"bootstrap.servers": address})
        for made in admin.create_topics([NewTopic(orders, 1), NewTopic(invoices, 1)]).values():
            made.result()
        place_orders(address, orders)
        for crash_after in (1, BATCH + 3, COUNT + 1):
            try:
                write_invoices(address, orders, invoices, crash_after)
            except Crash:
                print(f"crashed, with {len(read_invoices(address, invoices))} invoices written")
        found = read_invoices(address, invoices)
        print(f"{COUNT} orders, {len(found)} invoices, {len(set(found))} of them different")


if __name__ == "__main__":
    main()
