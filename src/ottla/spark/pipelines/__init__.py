"""Pipelines that need no program: each is a value that says what it is and builds its query."""
