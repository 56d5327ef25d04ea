"""Simulation: real brokers and clients in one process, under virtual time and seeded faults."""
