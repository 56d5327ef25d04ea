"""Commands of `ottla pipeline`."""
