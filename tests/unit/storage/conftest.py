"""Fixtures of the storage tests."""

import pytest

from fakes.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()
