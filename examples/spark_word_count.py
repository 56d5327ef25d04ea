"""Count the words of a topic with Spark, without a jar.

pip install '.[spark,java]' and then python examples/spark_word_count.py [HOST:PORT]
"""

import contextlib
import sys
import uuid

import confluent_kafka
from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split

import ottla.spark
import ottla.testing

LINES = ("to be or not to be", "that is the question")
PATIENCE_S = 600


def produce(address: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for line in LINES:
        producer.produce(topic, line)
    producer.flush()


def count_words(spark: SparkSession, address: str, topic: str) -> dict[str, int]:
    lines = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "string")
        .load()
    )
    words = lines.select(explode(split(lines.value, " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .trigger(availableNow=True)  # without this line it goes on for ever
        .start()
    )
    query.awaitTermination(PATIENCE_S)
    return {row["word"]: row["count"] for row in spark.table("counts").collect()}


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        topic = f"lines-{uuid.uuid1()}"
        produce(address, topic)
        spark = ottla.spark.session("word count", master="local[2]")
        stack.callback(spark.stop)
        counts = count_words(spark, address, topic)
        for word in sorted(counts):
            print(word, counts[word])


if __name__ == "__main__":
    main()
