"""The kernel in _fields.c; call it through `fields`."""

from typing import Any

def find_fields(
    source: Any, start: int, end: int, count: int, out: Any, row: int, room: int
) -> None: ...
def find_headers(source: Any, ats: Any, counts: Any, out: Any, room: int) -> None: ...
