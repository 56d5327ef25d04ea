"""What the kernel says about processes: trees, CPU seconds, memory, listeners."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
LISTENING: Final = "0A"
STOP_S: Final = 30.0


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(root_pid: int) -> list[int]:
    """The process and all that descend from it, as far as they are alive."""
    children: dict[int, list[int]] = {}
    for pid, fields in _every_stat():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root_pid]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(root_pid: int) -> float:
    """CPU seconds the tree has used, with children that have ended and were waited for."""
    ticks = 0
    for pid in tree(root_pid):
        if fields := _stat(pid):
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


def rss_bytes(root_pid: int) -> int:
    """Resident memory of the tree."""
    return sum(int(fields[21]) * PAGE_BYTES for pid in tree(root_pid) if (fields := _stat(pid)))


def machine_cpu_s() -> float:
    """CPU seconds that everything on this machine has used."""
    user, nice, system, _, _, irq, softirq = Path("/proc/stat").read_text().split()[1:8]
    return sum(int(ticks) for ticks in (user, nice, system, irq, softirq)) / TICKS_PER_S


def owns_listener(root_pid: int, port: int) -> bool:
    """Whether the socket that listens on `port` belongs to the tree: are we measuring our own?"""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    return any(sockets & _open_files(pid) for pid in tree(root_pid))


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process that we started to end; after a while, end what is left of its tree."""
    pids = tree(process.pid) if process.poll() is None else []
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in pids[1:]:
        if _stat(pid):
            os.kill(pid, signal.SIGKILL)


def _every_stat() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            yield int(entry), fields


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold spaces)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _open_files(pid: int) -> set[str]:
    names = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            names.add(os.readlink(entry.path))
    except (FileNotFoundError, PermissionError):
        pass
    return names
