"""How many examples properties take in `make quick`, `make test` and `make nightly`.

`OTTLA_EXAMPLES` scales properties: 0.2 takes a fifth of the examples, 10 takes ten times as many.
Other tests read their sizes from variables of their own, which the Makefile sets for `nightly`.
"""

import os
from typing import Final

_EXAMPLES: Final = float(os.environ.get("OTTLA_EXAMPLES", "1"))


def examples(count: int) -> int:
    """How many examples a property takes that takes `count` of them in `make test`."""
    return max(1, round(count * _EXAMPLES))
