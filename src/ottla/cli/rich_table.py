"""Tables on a terminal, with rich. A module of its own because rich is slow to import."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WRAPPED_COLUMNS: Final = 2  # the last columns have sentences; names are not wrapped


def print_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as the terminal allows; cells are text, never markup."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        is_name = position < len(columns) - _WRAPPED_COLUMNS
        table.add_column(Text(column), overflow="fold", no_wrap=is_name)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
