"""Ottla beside Apache Kafka, NATS and RabbitMQ: same machine, same run, the same questions."""
