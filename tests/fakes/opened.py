"""Files that this process has open, as the system sees them: counts of our own span other tests."""

from contextlib import suppress
from pathlib import Path


def open_files() -> dict[str, str]:
    """Every descriptor of this process, and what is behind it."""
    found = dict[str, str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the descriptors
            found[descriptor.name] = str(descriptor.readlink())
    return found


def open_below(directory: Path) -> list[str]:
    """The files of a directory that are open; removed ones end with "(deleted)"."""
    return [path for path in open_files().values() if path.startswith(f"{directory}/")]
