"""Exit codes of commands."""

from typing import Final

OK: Final = 0
FAILED: Final = 1  # the command is valid, but its work failed
WRONG_USAGE: Final = 2  # invalid command, options or input: nothing was tried
DEGRADED: Final = 3  # `store status`: the store serves, and something needs an operator
INTERRUPTED: Final = 130  # Ctrl-C: 128 + SIGINT
