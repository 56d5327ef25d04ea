"""What a run found: every sample, the conditions, and the medians over them."""

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final, Self

# More than this on average, and somebody else's work was measured too.
FOREIGN_CORES_MAX: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One value, and how many cores other processes used meanwhile."""

    value: float
    foreign_cores: float

    @property
    def quiet(self) -> bool:
        return self.foreign_cores <= FOREIGN_CORES_MAX


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server as the report names it."""

    name: str
    title: str
    version: str
    durability: str


@dataclass(slots=True, kw_only=True)
class Results:
    """Owned by the run, which adds samples; the report only reads."""

    conditions: dict[str, str]
    contestants: list[Contestant]
    rounds: int
    complete: bool  # every row, every round: worth publishing
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)

    def add(self, metric: str, server: str, sample: Sample) -> None:
        self.samples.setdefault(metric, {}).setdefault(server, []).append(sample)

    def median(self, metric: str, server: str) -> float | None:
        """Over the quiet samples, unless fewer than half of them were."""
        samples = self.samples.get(metric, {}).get(server, [])
        quiet = [sample.value for sample in samples if sample.quiet]
        chosen = quiet if 2 * len(quiet) >= len(samples) else [sample.value for sample in samples]
        return median(chosen) if chosen else None

    def largest(self, metric: str, server: str) -> float | None:
        """Of all samples: who asks for the worst case does not ask whether it was quiet."""
        samples = self.samples.get(metric, {}).get(server, [])
        return max((sample.value for sample in samples), default=None)

    def noisy_count(self) -> tuple[int, int]:
        """Samples taken while others used the cores, and all samples."""
        every = [s for servers in self.samples.values() for row in servers.values() for s in row]
        return sum(not sample.quiet for sample in every), len(every)

    def fewest_rounds(self) -> int:
        """Of any metric: runs that were put together need not have the same number."""
        counts = (len(row) for servers in self.samples.values() for row in servers.values())
        return min(counts, default=self.rounds)

    def join(self, other: "Results") -> None:
        """Add the samples of another run with the same servers, of other rows."""
        if shared := self.samples.keys() & other.samples.keys():
            raise ValueError(f"both runs have {', '.join(sorted(shared))}")
        self.samples |= other.samples
        self.rounds = max(self.rounds, other.rounds)
        self.left_out += [reason for reason in other.left_out if reason not in self.left_out]
        self.failures += other.failures

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw = json.loads(text)
        contestants = [Contestant(**fields) for fields in raw.pop("contestants")]
        samples = {
            metric: {name: [Sample(**fields) for fields in row] for name, row in servers.items()}
            for metric, servers in raw.pop("samples").items()
        }
        return cls(contestants=contestants, samples=samples, **raw)


def conditions(*, native: bool) -> dict[str, str]:
    """The machine and the client, as far as a reader must know them to compare."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "CPU": f"{_cpu_model()}, {_cpu_count()} cores",
        "memory": f"{_memory_gb():.0f} GB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": f"{platform.python_version()}, {_python_origin()}",
        "client": f"librdkafka {version('confluent-kafka')} of the confluent-kafka wheel, driven "
        + ("from C" if native else "from Python (no C compiler: the client is the limit)"),
    }


def _python_origin() -> str:
    """Whose build it is: one with profile-guided optimisation, as Debian's, is a quarter faster."""
    return "the system's own" if sys.base_prefix == "/usr" else "not the system's own"


def _cpu_model() -> str:
    return _proc_fields("/proc/cpuinfo").get("model name", platform.machine())


def _cpu_count() -> int:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return sum(line.startswith("processor") for line in lines)


def _memory_gb() -> float:
    return int(_proc_fields("/proc/meminfo")["MemTotal"].split()[0]) * 1024 / 1e9


def _proc_fields(path: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in Path(path).read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
