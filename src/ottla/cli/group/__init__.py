"""Commands of `ottla group`, and `ottla consume --group`."""
