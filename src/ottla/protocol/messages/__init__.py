"""Typed classes, one per Kafka message; the annotations are the schema."""
