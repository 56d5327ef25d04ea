"""Where an etcd cluster is and how a client gets in: URL, TLS files, user and password."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.errors import UsageRefused
from ottla.model import Endpoint

_PORT: Final = 2379  # etcd's own
_EXAMPLE: Final = "for example etcd://10.0.0.1:2379,10.0.0.2:2379/ottla"
_SCHEMES: Final = {"etcd": False, "etcds": True}
_DEFAULT_PREFIX: Final = "ottla"
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_SERVER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The servers of one etcd cluster, and the prefix that all keys are stored below."""

    servers: tuple[Endpoint, ...]
    prefix: str  # ends with a slash
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> "EtcdAddress":
        """Parse etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// where servers use TLS."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise _refused(url, "does not begin with etcd:// or etcds://")
        if "@" in rest:
            raise UsageRefused(
                "the address of a store is printed and logged: give the user with --store-user, and"
                " the password with --store-password-file or OTTLA_STORE_PASSWORD, not in it"
            )
        if "?" in rest or "#" in rest:
            raise _refused(url, "has a query or a fragment, which have no meaning here")
        hosts, _, path = rest.partition("/")
        prefix = path.removesuffix("/") or _DEFAULT_PREFIX
        if not _PREFIX.fullmatch(prefix):
            raise _refused(
                url,
                f"has the prefix {prefix!r}: use A-Z, a-z, 0-9, '.', '_', '-', and '/' in between",
            )
        servers = tuple(_server(url, text) for text in hosts.split(","))
        if len(set(servers)) < len(servers):
            raise _refused(url, "names a server twice")
        return cls(servers, prefix + "/", _SCHEMES[scheme])


@dataclass(frozen=True, slots=True)
class EtcdCredentials:
    """User and password of etcd's own authentication."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdTlsFiles:
    """PEM files for TLS: the authority to trust, and the certificate that the client presents."""

    ca: Path | None = None  # the system's authorities if None
    certificate: Path | None = None
    key: Path | None = None  # in the certificate's file if None

    def context(self) -> ssl.SSLContext:
        """The TLS settings of all connections. Raises UsageRefused for a file that is unusable."""
        try:
            made = ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as problem:
            raise UsageRefused(
                f"{self.ca} cannot be used as etcd's certificate authority: {problem}"
            ) from problem
        if self.certificate is not None:
            try:
                made.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            except (OSError, ValueError) as problem:
                raise UsageRefused(
                    f"{self.certificate} (key: {self.key or 'in the same file'}) cannot be used as"
                    f" client certificate for etcd: {problem}"
                ) from problem
        elif self.key is not None:
            raise UsageRefused(f"{self.key} is a key for etcd without a client certificate")
        return made


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How a client gets in, besides the address."""

    credentials: EtcdCredentials | None = None
    tls: EtcdTlsFiles = EtcdTlsFiles()


def _no_passphrase() -> str:
    """Refuse to ask on the terminal."""
    raise ValueError("the key has a passphrase: give a key without one")


def _server(url: str, text: str) -> Endpoint:
    found = _SERVER.fullmatch(text)
    port = int(found["port"] or _PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise _refused(url, f"names the server {text!r}, which is not HOST:PORT")
    return Endpoint(found["host"].strip("[]"), port)


def _refused(url: str, problem: str) -> UsageRefused:
    return UsageRefused(f"{url!r} {problem} ({_EXAMPLE})")
