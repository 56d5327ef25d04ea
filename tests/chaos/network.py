"""A network of the run's own: a bridge, and a network namespace for each machine.

All of it is inside of namespaces that the run was started in, and ends with them. Nothing of it
can be reached from outside, and nothing outside from it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

_NAMES: Final = Path("/run/netns")
_SUBNET: Final = "198.18.0"  # for tests of networks (RFC 2544)
_TIMEOUT_S: Final = 60
# Processes, mounts and networks of their own: the kernel ends them with the first process.
_UNSHARE: Final = (
    *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
STORE_PORT: Final = 2379


def namespace_problem() -> str | None:
    """Why no network can be made here; None when one can."""
    if os.geteuid() != 0:
        return f"making network namespaces needs root, and this is user {os.geteuid()}"
    for tool in ("nft", "ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    rules = "nft add table inet chaos && ip link add br0 type bridge"
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-c", rules], capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    if tried.returncode:
        said = tried.stderr.decode(errors="replace").strip()
        return f"network namespaces cannot be made here: {said}"
    return None


def enter(command: Sequence[str]) -> NoReturn:
    """Become a command that has namespaces of its own; what it starts ends with it."""
    os.execvp(_UNSHARE[0], [*_UNSHARE, *command])


def host_of(machine: int) -> str:
    return f"{_SUBNET}.{machine}"


def inside(machine: int) -> list[str]:
    """The beginning of a command that runs on a machine.

    Only its network is another one: a copy of the mounts would keep disks of other machines busy.
    """
    return ["nsenter", f"--net={_NAMES / f'n{machine}'}"]


class Network:
    """Connects machines; and clients, which are where this process is."""

    def __init__(self, machines: Iterable[int]) -> None:
        self.machines = list(machines)

    def make(self) -> None:
        """Called once, in namespaces of the run's own."""
        _detach_disks()
        _NAMES.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(_NAMES))
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "addr", "add", f"{_SUBNET}.254/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")
        for machine in self.machines:
            name, cable = f"n{machine}", f"cable{machine}"
            _run("ip", "netns", "add", name)
            _run(*("ip", "link", "add", cable, "type", "veth"), *("peer", "eth0", "netns", name))
            _run("ip", "link", "set", cable, "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"{host_of(machine)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            self._nft(machine, "add table inet chaos")
            for hook in ("input", "output"):
                self._nft(
                    machine,
                    f"add chain inet chaos {hook} {{ type filter hook {hook} priority 0; }}",
                )

    def drop_from(self, machine: int, others: Iterable[int]) -> None:
        """Nothing that others send reaches a machine."""
        self._drop(machine, "input", "saddr", others)

    def drop_to(self, machine: int, others: Iterable[int]) -> None:
        """Nothing that a machine sends reaches others."""
        self._drop(machine, "output", "daddr", others)

    def drop_store(self, machine: int) -> None:
        """Nothing on a machine reaches a member of etcd, the one beside it included."""
        self._nft(machine, f"add rule inet chaos output tcp dport {STORE_PORT} drop")

    def heal(self) -> None:
        for machine in self.machines:
            self._nft(machine, "flush table inet chaos")

    def _drop(self, machine: int, hook: str, field: str, others: Iterable[int]) -> None:
        hosts = ", ".join(map(host_of, others))
        self._nft(machine, f"add rule inet chaos {hook} ip {field} {{ {hosts} }} drop")

    def _nft(self, machine: int, rule: str) -> None:
        _run(*inside(machine), "nft", rule)


def _detach_disks() -> None:
    """Let go of disks that other tests had mounted when this mount namespace was made."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mounted = line.split()[:2]
        if device.startswith("/dev/loop"):
            _run("umount", "--lazy", mounted)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"
