"""Build the source distribution and the wheel, install both and use what was installed.

    python -m tools.package            both into dist/, checked in virtual environments of their own

The wheel is built from the source distribution, so a file that the latter lacks fails the build.
The installed broker writes and reads a record; with the extra `spark` it is read by Spark, too.
No source tree is on the path of anything that is run from the virtual environments.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import ottla

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
VERSION: Final = ottla.__version__
KERNEL: Final = "ottla/spark/_kernel.abi3.so"
WHEEL_TAG: Final = "cp311-abi3-linux_"
TOPIC: Final = "packaged"
VALUE: Final = "hello from an installed package"
_IN_WHEEL: Final = ("ottla/py.typed", "ottla/spark/_kernel.pyi", KERNEL, "pyspark_ottla.py")
_IN_SDIST: Final = (
    "LICENSE",
    "README.md",
    "setup.py",
    "src/ottla/py.typed",
    "src/ottla/spark/_kernel.c",
)
_ONLY_IN_TREE: Final = ("tests/", "bench/", "compat/", "docs/", "examples/", "tools/")
_READY: Final = re.compile(r"ottla ready on (127\.0\.0\.1:\d+)")
_PINNED: Final = re.compile(r"^([A-Za-z0-9_.-]+)==([^ \\;]+)(?: *;([^\\]*))?", re.MULTILINE)
_COMMAND_TIMEOUT_S: Final = 600
_STOP_TIMEOUT_S: Final = 30

_USE_SPARK: Final = """
import sys
from pathlib import Path

import ottla.spark
import ottla.spark._kernel

address, topic, value = sys.argv[1:]
spark = ottla.spark.session(master="local[1]")
rows = (
    spark.read.format("ottla")
    .option("kafka.bootstrap.servers", address)
    .option("subscribe", topic)
    .option("valueFormat", "string")
    .load()
)
assert [row.value for row in rows.collect()] == [value], rows.collect()
homes = spark.sparkContext.parallelize([0]).map(lambda _: __import__("ottla").__file__).collect()
for home in (*homes, ottla.__file__, ottla.spark._kernel.__file__):
    assert Path(home).is_relative_to(sys.prefix), f"{home} is not in {sys.prefix}"
spark.stop()
print("Spark read", value)
"""


class PackageBroken(Exception):
    """A distribution does not contain or do what it should; the text says which and what."""


def main() -> int:
    started_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ottla-package-") as directory:
            check_package(Path(directory))
    except PackageBroken as problem:
        print(f"make package: {problem}", file=sys.stderr)
        return 1
    print(f"package: done in {time.monotonic() - started_s:.0f} s")
    return 0


def check_package(scratch: Path) -> None:
    sdist, wheel = build(scratch)
    check_contents(sdist, wheel)
    pins = scratch / "constraints.txt"
    pins.write_text(constraints((ROOT / "requirements.lock").read_text()))
    with step("install the wheel with the extras spark and java into an empty environment"):
        installed = install(f"{wheel}[spark,java]", scratch / "wheel", pins)
    use(installed, scratch / "wheel-data", has_spark=True)
    with step("install the source distribution into an empty environment"):
        installed = install(str(sdist), scratch / "sdist", pins)
    use(installed, scratch / "sdist-data", has_spark=False)


def build(scratch: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that was built from it."""
    with step("build the source distribution, and the wheel from it"):
        made = scratch / "dist"
        # Without isolation, since `setuptools` is in the lock; installing the source distribution
        # below is isolated, and so fails if `build-system.requires` lacks something.
        build_both = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made))
        run((*build_both, str(ROOT)), cwd=scratch)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(made, DIST)
    return one_of(DIST, "*.tar.gz"), one_of(DIST, "*.whl")


def one_of(directory: Path, pattern: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise PackageBroken(f"{directory} has {len(found)} files {pattern}, not one")
    return found[0]


def check_contents(sdist: Path, wheel: Path) -> None:
    with step(f"look into {sdist.name} and {wheel.name}"):
        if not wheel.name.startswith(f"ottla-{VERSION}-{WHEEL_TAG}"):
            raise PackageBroken(f"{wheel.name} is not tagged {WHEEL_TAG}*: see setup.py")
        with zipfile.ZipFile(wheel) as archive:
            require(wheel.name, archive.namelist(), _IN_WHEEL)
        with tarfile.open(sdist) as tar:
            names = [name.partition("/")[2] for name in tar.getnames()]
        require(sdist.name, names, _IN_SDIST)
        if extra := [name for name in names if name.startswith(_ONLY_IN_TREE)]:
            raise PackageBroken(f"{sdist.name} contains {extra[0]}: prune it in MANIFEST.in")


def require(archive: str, names: Sequence[str], required: Sequence[str]) -> None:
    for name in required:
        if name not in names:
            hint = (
                ": is there a C compiler?"
                if name == KERNEL
                else ": see pyproject.toml, MANIFEST.in"
            )
            raise PackageBroken(f"{archive} lacks {name}{hint}")


def constraints(lock: str) -> str:
    """The versions of a lock file, without the hashes: pip refuses a local file beside those."""
    return "".join(
        f"{name}=={version}{f' ; {marker.strip()}' if marker else ''}\n"
        for name, version, marker in _PINNED.findall(lock)
    )


def install(requirement: str, home: Path, pins: Path) -> Path:
    """The `bin` directory of a new environment in which only `requirement` is installed."""
    run((sys.executable, "-m", "venv", str(home)), cwd=home.parent)
    pip = (str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    run((*pip, "--no-compile", "--constraint", str(pins), requirement), cwd=home.parent)
    return home / "bin"


def use(bin_directory: Path, data: Path, *, has_spark: bool) -> None:
    command = str(bin_directory / "ottla")
    with step(f"ottla --version, produce and consume in {bin_directory.parent.name}"):
        expect(run((command, "--version"), cwd=data.parent), f"ottla {VERSION}", "ottla --version")
        kernel = (str(bin_directory / "python"), "-I", "-c", "import ottla.spark._kernel")
        run(kernel, cwd=data.parent)
        with broker(command, data) as address:
            at = ("--broker", address)
            run((command, "produce", TOPIC, *at), cwd=data.parent, stdin=f"{VALUE}\n")
            consumed = run((command, "consume", TOPIC, *at), cwd=data.parent)
            expect(consumed, VALUE, "ottla consume")
            if has_spark:
                use_spark(bin_directory / "python", address, data.parent)


def use_spark(python: Path, address: str, scratch: Path) -> None:
    with step("a Spark session of the installed package reads the record"):
        program = scratch / "use_spark.py"
        program.write_text(_USE_SPARK)
        run((str(python), "-I", str(program), address, TOPIC, VALUE), cwd=scratch)


@contextmanager
def broker(command: str, data: Path) -> Iterator[str]:
    """The address of an installed broker, which stops with status 0 at the end."""
    serve = (command, "serve", "--data", str(data), "--listen", "127.0.0.1:0")
    process = subprocess.Popen(
        serve, cwd=data.parent, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield _ready_address(process)
        process.terminate()
        if status := process.wait(_STOP_TIMEOUT_S):
            raise PackageBroken(f"the broker stopped with status {status}")
    finally:
        process.kill()
        process.communicate()


def _ready_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _READY.search(line):
            return found[1]
    raise PackageBroken(f"the broker ended with status {process.wait()} before it was ready")


def expect(output: str, expected: str, command: str) -> None:
    if output.strip() != expected:
        raise PackageBroken(f"{command} printed {output.strip()!r}, not {expected!r}")


def run(command: Sequence[str], *, cwd: Path, stdin: str = "") -> str:
    """The output of a command that ends with status 0."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise PackageBroken(f"status {done.returncode} of {' '.join(command)}")
    return done.stdout


def environment() -> Mapping[str, str]:
    """This process's environment without anything that leads to another Python or to sources."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "OTTLA"))
    }


@contextmanager
def step(what: str) -> Iterator[None]:
    print(f"package: {what} ...", flush=True)
    started_s = time.monotonic()
    yield
    print(f"package: {what}: {time.monotonic() - started_s:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
