"""`ottla` with one function that raises, from SIGUSR1 on.

Run as a program: MODULE:NAME EXCEPTION ARGUMENTS, for example
`ottla.storage.flusher:ThreadFlusher._sync TypeError serve --data DIRECTORY`.
Once the signal has arrived, the line `armed` is written to standard output.
"""

import builtins
import functools
import importlib
import os
import signal
import sys
from typing import Any, Final

from ottla.cli import main

ARMED: Final = "armed\n"


def plant(place: str, kind: type[Exception]) -> None:
    """Put a function into this place that does what the one before did, until the signal."""
    module, _, path = place.partition(":")
    *parents, name = path.split(".")
    owner: Any = functools.reduce(getattr, parents, importlib.import_module(module))
    real = getattr(owner, name)
    signals: list[int] = []

    def arm(number: int, _: object) -> None:
        signals.append(number)
        os.write(sys.stdout.fileno(), ARMED.encode())

    @functools.wraps(real)
    def defective(*args: Any, **kwargs: Any) -> Any:
        if signals:
            raise kind(f"planted in {place}")
        return real(*args, **kwargs)

    setattr(owner, name, defective)
    signal.signal(signal.SIGUSR1, arm)


if __name__ == "__main__":
    plant(sys.argv[1], getattr(builtins, sys.argv[2]))
    sys.exit(main.run(sys.argv[3:]))
