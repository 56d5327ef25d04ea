"""Commands of `ottla log`: they read data directories, not brokers."""
