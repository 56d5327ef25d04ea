"""The compiled kernel (`_kernel.c`), and the warning that it is missing.

Without a C compiler the package installs and works: every function of the kernel has a Python
fallback with the same results, which takes 2 to 3 µs for a record instead of 0.03 µs.
"""

import sys
import warnings
from enum import IntEnum
from typing import Final

try:
    from ottla.spark import _kernel as kernel
except ImportError:  # installed without a C compiler
    kernel = None  # type: ignore[assignment]

__all__ = [
    "IS_COMPILED",
    "RECORD_BYTES_MIN",
    "Field",
    "KernelMissing",
    "kernel",
    "warn_if_missing",
]

RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two sizes, header count
_FUNCTIONS: Final = ("find_fields", "find_headers", "pack_records", "hash_keys", "hash_bytes")


class Field(IntEnum):
    """The rows of the table of records."""

    TIMESTAMP = 0
    OFFSET = 1
    KEY_AT = 2
    KEY_BYTES = 3
    VALUE_AT = 4
    VALUE_BYTES = 5
    HEADERS_AT = 6  # after the header count
    HEADER_COUNT = 7


class KernelMissing(RuntimeWarning):
    """Records are decoded and encoded in Python because the compiled kernel cannot be imported."""


# False also for an older build that lacks a function.
IS_COMPILED: Final = all(hasattr(kernel, name) for name in _FUNCTIONS)
_has_warned = False


def warn_if_missing() -> None:
    """Warn once in this process if there is no compiled kernel.

    Called where a session, a reader or a writer is made (the driver) and where a task begins (an
    executor): Python's default filters print it to the stderr of that process.
    """
    global _has_warned  # noqa: PLW0603  # once for a process
    if IS_COMPILED or _has_warned:
        return
    _has_warned = True
    warnings.warn(
        "ottla.spark runs without its compiled kernel, so records are decoded and encoded in"
        f" Python, ten to forty times slower. In the environment of {sys.executable}, and on every"
        " executor, install a wheel of ottla for this platform, or a C compiler (Debian and"
        " Ubuntu: apt-get install gcc python3-dev) and then: pip install --force-reinstall"
        " --no-cache-dir --no-binary ottla ottla",
        KernelMissing,
        stacklevel=2,
    )
