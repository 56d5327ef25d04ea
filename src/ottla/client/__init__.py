"""A Kafka client: connections, metadata, produce, fetch, groups, transactions."""
