"""A member of etcd on this machine: its arguments are checked, then its program takes over."""

import ipaddress
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ottla.cli.terminal import print_note
from ottla.cluster.etcd_version import check_version
from ottla.errors import UsageRefused
from ottla.model import Endpoint

_PEER_PORT: Final = 2380
_VERSION_S: Final = 30.0
_MEMBER: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)=(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]+))?"
)
_VERSION: Final = re.compile(r"etcd Version: (\S+)")
# History for watches that were away for an hour, and a limit that says so when it is reached.
_LIMITS: Final = (
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=1h",
    "--quota-backend-bytes=2147483648",
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member to run: where it is, where the others are, and its directory."""

    name: str
    peers: Mapping[str, Endpoint]  # by name, the address for other members
    data: Path
    client_port: int
    listen: str

    @classmethod
    def of(cls, name: str, members: str, data: Path, client_port: int, listen: str) -> "Member":
        """Check arguments of the command line. Raises UsageRefused."""
        peers: dict[str, Endpoint] = {}
        for text in members.split(","):
            member, peer = _parse_member(text)
            if member in peers:
                raise UsageRefused(f"--members names {member} twice")
            if peer in peers.values():
                raise UsageRefused(f"--members names the address {peer} twice")
            peers[member] = peer
        if name not in peers:
            raise UsageRefused(f"--name {name} is none of --members: {', '.join(peers)}")
        if not 0 < client_port < 65536:
            raise UsageRefused(f"--client-port {client_port} is not a number from 1 to 65535")
        if client_port == peers[name].port:
            raise UsageRefused(f"{client_port} cannot be the port for brokers and for members")
        return cls(name, peers, data, client_port, listen or _bindable(peers[name].host))

    @property
    def arguments(self) -> list[str]:
        """The options of etcd."""
        peer = self.peers[self.name]
        client = Endpoint(peer.host, self.client_port)
        listening = {f"http://{Endpoint(self.listen, self.client_port)}": None}
        if not ipaddress.ip_address(self.listen).is_unspecified:
            listening[f"http://127.0.0.1:{self.client_port}"] = None
        cluster = ",".join(f"{name}=http://{one}" for name, one in self.peers.items())
        return [
            *("--name", self.name, "--data-dir", str(self.data)),
            *("--listen-peer-urls", f"http://{Endpoint(self.listen, peer.port)}"),
            *("--initial-advertise-peer-urls", f"http://{peer}"),
            *("--listen-client-urls", ",".join(listening)),
            *("--advertise-client-urls", f"http://{client}"),
            *("--initial-cluster", cluster),
            *("--initial-cluster-state", "new", "--initial-cluster-token", "ottla"),
            *_LIMITS,
        ]


def run_member(member: Member, program: str) -> NoReturn:
    """Become etcd. Raises UsageRefused if that cannot work."""
    found = shutil.which(program)
    if found is None:
        raise UsageRefused(
            f"{program} is not there: install etcd (Debian: etcd-server), or name it with --etcd"
        )
    version = _version(found)
    if warning := check_version("this machine", version):
        print_note(f"etcd {version}: {warning}")
    if len(member.peers) % 2 == 0:
        count = len(member.peers)
        print_note(f"{count} members survive no more failures than {count - 1}: use 1, 3 or 5")
    _prepare_directory(member.data)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(found, [found, *member.arguments])  # noqa: S606  # no shell is wanted


def _version(program: str) -> str:
    try:
        run = subprocess.run(  # noqa: S603  # the program that the operator named
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageRefused(f"{program} cannot be run: {problem}") from None
    version = _VERSION.search(run.stdout)
    if version is None:
        raise UsageRefused(f"{program} is not etcd: `{program} --version` does not say so")
    return version[1]


def _prepare_directory(data: Path) -> None:
    """Make the directory, or refuse one that holds something else."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {entry.name for entry in data.iterdir()}
    except OSError as problem:
        raise UsageRefused(f"--data {data} cannot be used: {problem.strerror}") from None
    if content and "member" not in content and content != {"lost+found"}:
        raise UsageRefused(
            f"{data} is not empty and was not made by etcd (it holds {min(content)!r}): choose"
            " another directory with --data"
        )
    if not os.access(data, os.W_OK | os.X_OK):
        raise UsageRefused(f"--data {data} cannot be written to by this user")


def _parse_member(text: str) -> tuple[str, Endpoint]:
    found = _MEMBER.fullmatch(text.strip())
    port = int(found["port"] or _PEER_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise UsageRefused(
            f"--members has {text.strip()!r}, which is not NAME=HOST or NAME=HOST:PORT, for example"
            " n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3"
        )
    return found["name"], Endpoint(found["host"].strip("[]"), port)


def _bindable(host: str) -> str:
    """An address to listen on: etcd takes no names."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "127.0.0.1" if host == "localhost" else "0.0.0.0"  # noqa: S104  # as documented
