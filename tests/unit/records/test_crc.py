"""The checksum is the package's own, however it is loaded."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import crc32c as package
import pytest

from ottla.records import crc
from ottla.records.crc import crc32c


def test_sums_are_those_of_the_package() -> None:
    rng = Random(1)
    for size in (0, 1, 60, 4096, 1_000_000):
        data = rng.randbytes(size)
        assert crc32c(data) == package.crc32c(data)
        assert crc32c(memoryview(bytearray(data))) == package.crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283


def test_a_package_that_is_made_in_another_way_is_imported(tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text("def crc32c(data):\n    return 4711\n")
    script = "from ottla.records.crc import crc32c; print(crc32c(b''))"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"4711"


def test_a_package_that_only_import_finds_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from an importer of another kind, which has no path to search."""
    monkeypatch.setattr(crc, "find_spec", lambda name: None)
    assert crc._load() is package
