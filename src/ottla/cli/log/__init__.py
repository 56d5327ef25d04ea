"""Commands of `ottla log`, which read data directories without a broker."""
