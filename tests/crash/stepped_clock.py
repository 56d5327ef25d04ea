"""`ottla` whose wall clock another process steps, through eight bytes of a file.

Run as a program: FILE ARGUMENTS, for example `/tmp/clock serve --data DIRECTORY`. Clocks that never
jump stay as they are, as they do when the clock of a machine is set.
"""

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

_OFFSET: Final = struct.Struct("=q")  # nanoseconds


class SteppedClock:
    """The difference between the wall clock of such a program and the machine's own."""

    def __init__(self, control: Path) -> None:
        if not control.exists():
            control.write_bytes(bytes(_OFFSET.size))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _OFFSET.size)

    @property
    def offset_ns(self) -> int:
        (offset_ns,) = _OFFSET.unpack_from(self._shared)
        return int(offset_ns)

    def set(self, offset_ms: int) -> None:
        """Set the clock; the program sees it the next time it looks."""
        _OFFSET.pack_into(self._shared, 0, offset_ms * 1_000_000)


def plant(clock: SteppedClock) -> None:
    """Let every look at the wall clock in this process see the difference."""
    real_ns = time.time_ns
    stepped = {
        "time": lambda: (real_ns() + clock.offset_ns) / 1e9,
        "time_ns": lambda: real_ns() + clock.offset_ns,
    }
    for name, function in stepped.items():
        setattr(time, name, function)


if __name__ == "__main__":
    plant(SteppedClock(Path(sys.argv[1])))
    from ottla.cli import main  # behind the clock: modules may keep its functions

    sys.exit(main.run(sys.argv[2:]))
