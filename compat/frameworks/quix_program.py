"""Quix Streams: sums by key, with a store whose changelog is a topic, exactly once.

python quix_program.py ADDRESS SOURCE TARGET COUNT STATE
"""

import sys

from quixstreams import Application

address, source, target, count, state = sys.argv[1:]
app = Application(
    broker_address=address,
    consumer_group="sums",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    state_dir=state,
    topic_create_timeout=60,
)
frame = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="str"))


def add(number, store):
    total = store.get("total", 0) + number
    store.set("total", total)
    return total


frame = frame.apply(add, stateful=True)
frame = frame.to_topic(app.topic(target, value_serializer="json", key_serializer="str"))
app.run(count=int(count), timeout=120)
