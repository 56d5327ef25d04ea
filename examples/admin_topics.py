"""Make a topic, look at it, change it, delete it, with confluent-kafka's AdminClient.

    python examples/admin_topics.py [HOST:PORT]

Without an address it starts a broker of its own, in this process. Every call returns futures;
`result()` waits for the broker's answer and raises what it refused.
"""

import contextlib
import sys

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

import ottla.testing

TOPIC = "orders"


def create(admin: AdminClient) -> None:
    topic = NewTopic(TOPIC, num_partitions=3, config={"retention.ms": "86400000"})
    admin.create_topics([topic])[TOPIC].result()
    print(f"{TOPIC} is made")


def describe(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    settings = admin.describe_configs([resource])[resource].result()
    topic = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result()
    retention, durability = settings["retention.ms"].value, settings["durability"].value
    print(f"{len(topic.partitions)} partitions, retention.ms={retention}, durability={durability}")


def change(admin: AdminClient) -> None:
    """Other settings keep their values; the number of partitions can only grow."""
    wish = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[wish])
    admin.incremental_alter_configs([resource])[resource].result()
    admin.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result()


def delete(admin: AdminClient) -> None:
    admin.delete_topics([TOPIC])[TOPIC].result()
    print(f"{TOPIC} is deleted")


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        admin = AdminClient({"bootstrap.servers": address})
        create(admin)
        describe(admin)
        change(admin)
        describe(admin)
        delete(admin)


if __name__ == "__main__":
    main()
