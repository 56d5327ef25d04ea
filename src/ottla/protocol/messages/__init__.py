"""One typed class per Kafka message; the annotations are the schema."""
