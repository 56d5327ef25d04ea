"""Kafka's wire protocol: messages, codecs and frames."""
