"""CRC-32C from the compiled module of the package crc32c, without importing the package.

The package looks up its own version on import, which loads the modules for mail, zip files and CSV:
a seventh of a broker's start-up time. The compiled module alone loads at once.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Final

Buffer = bytes | bytearray | memoryview

_PACKAGE: Final = "crc32c"
_MODULE: Final = "crc32c._crc32c"


def _load() -> ModuleType:
    package = find_spec(_PACKAGE)
    if package is not None:
        spec = PathFinder.find_spec(_MODULE, package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return import_module(_PACKAGE)  # a build with another layout: slower to import, same result


crc32c: Final[Callable[[Buffer], int]] = _load().crc32c
