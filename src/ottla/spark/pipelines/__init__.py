"""Pipelines of `ottla pipeline`: each is a value with a declaration that builds its query."""
