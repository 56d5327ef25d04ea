"""CRC-32C from the compiled module of its package, without the package around it.

The package asks for its own version when it is imported, and for that loads what reads mail, zip
files and tables: a seventh of what a broker's start costs. The module alone is there at once.
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
    return import_module(_PACKAGE)  # made in another way than we know: slower, and the same sum


crc32c: Final[Callable[[Buffer], int]] = _load().crc32c
