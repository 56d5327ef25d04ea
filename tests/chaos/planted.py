"""`python -m chaos.planted BUG ...`: the command `ottla` with a bug of `sim.planted` in it."""

import sys

from ottla.cli import main
from sim.planted import PLANTS

if __name__ == "__main__":
    PLANTS[sys.argv[1]]()
    sys.exit(main.run(sys.argv[2:]))
