"""How a command ends, for scripts."""

from typing import Final

OK: Final = 0
FAILED: Final = 1  # the command was understood, but what it asked for did not happen
WRONG_USAGE: Final = 2  # the command, or what it was given, makes no sense: nothing was tried
INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
