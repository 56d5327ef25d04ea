"""`python -m ottla` is the command `ottla`, of the Python that runs it."""

import sys

from ottla.cli.main import main

sys.exit(main())
