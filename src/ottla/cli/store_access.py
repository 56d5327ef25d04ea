"""How a command gets into the coordination store: user, password and certificates.

A password is read from a file or from the environment: arguments are shown by `ps`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.errors import UsageRefused

if TYPE_CHECKING:
    from ottla.cluster.etcd_address import EtcdAccess, EtcdCredentials

USER_VARIABLE: Final = "OTTLA_STORE_USER"
PASSWORD_VARIABLE: Final = "OTTLA_STORE_PASSWORD"  # noqa: S105  # a name
_PLAIN: Final = "etcd:"


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The options of a command line, each None if it was not given."""

    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def named(self) -> list[tuple[str, str]]:
        """Options and values that were given, to be passed on to another process."""
        pairs = (
            ("--store-user", self.user),
            ("--store-password-file", self.password_file),
            ("--store-ca", self.ca),
            ("--store-certificate", self.certificate),
            ("--store-key", self.key),
        )
        return [(name, str(value)) for name, value in pairs if value is not None]


def read_access(store: str | None, options: AccessOptions) -> "EtcdAccess | None":
    """User, password and certificates for etcd, None for another store, or UsageRefused."""
    given = [name for name, _ in options.named()]
    if given and (store is None or not store.startswith("etcd")):
        raise UsageRefused(f"{given[0]} is for etcd: name it with --store etcd://HOST:2379")
    if store is None or not store.startswith("etcd"):
        return None
    from ottla.cluster.etcd_address import (  # noqa: PLC0415  # most brokers do without
        EtcdAccess,
        EtcdAddress,
        EtcdTlsFiles,
    )

    EtcdAddress.parse(store)  # refused here, before processes are started with it
    tls = EtcdTlsFiles(options.ca, options.certificate, options.key)
    if tls != EtcdTlsFiles() and store.startswith(_PLAIN):
        raise UsageRefused("certificates are for TLS: begin the address of --store with etcds://")
    return EtcdAccess(_credentials(options), tls)


def _credentials(options: AccessOptions) -> "EtcdCredentials | None":
    from ottla.cluster.etcd_address import EtcdCredentials  # noqa: PLC0415  # as above

    user = options.user or os.environ.get(USER_VARIABLE) or ""
    password = os.environ.get(PASSWORD_VARIABLE) or ""
    if options.password_file is not None:
        password = _read_password(options.password_file)
    if user and password:
        return EtcdCredentials(user, password)
    if user:
        raise UsageRefused(
            f"user {user!r} of the coordination store has no password: give"
            f" --store-password-file FILE, or set {PASSWORD_VARIABLE}"
        )
    if password:
        raise UsageRefused(
            f"there is a password of the coordination store and no user: give --store-user NAME, or"
            f" set {USER_VARIABLE}"
        )
    return None


def _read_password(file: Path) -> str:
    try:
        password = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise UsageRefused(f"--store-password-file {file} cannot be read: {reason}") from None
    if not password:
        raise UsageRefused(f"--store-password-file {file} is empty")
    return password
