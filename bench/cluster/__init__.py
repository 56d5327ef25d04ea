"""Three brokers beside three of Apache Kafka, each on the same two cores in turn."""
