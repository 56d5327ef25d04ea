"""Getting into the coordination store: options, files, the environment."""

from pathlib import Path

import pytest

from ottla.cli.serve import parse_options
from ottla.cli.store_access import AccessOptions, read_access
from ottla.cluster.etcd_address import EtcdAccess, EtcdCredentials, EtcdTlsFiles
from ottla.errors import UsageRefused

ETCD = "etcd://h1:2379"


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_STORE_USER", raising=False)
    monkeypatch.delenv("OTTLA_STORE_PASSWORD", raising=False)


def test_the_password_comes_from_a_file_or_the_environment_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    said = ["--store", ETCD, "--store-user", "ottla", "--store-password-file", str(file)]
    options = parse_options(said)
    assert options.store_access == EtcdAccess(EtcdCredentials("ottla", "hunter2"))
    assert "hunter2" not in repr(options)
    monkeypatch.setenv("OTTLA_STORE_USER", "ottla")
    monkeypatch.setenv("OTTLA_STORE_PASSWORD", "swordfish")
    granted = EtcdAccess(EtcdCredentials("ottla", "swordfish"))
    assert read_access(ETCD, AccessOptions()) == granted
    assert parse_options(said).store_access == options.store_access, "the file wins"
    assert read_access(None, AccessOptions()) is None, "of no use to other stores"


def test_certificates_are_those_of_the_options() -> None:
    said = ["--store-ca", "ca", "--store-certificate", "own", "--store-key", "key"]
    access = parse_options(["--store", "etcds://h1/p", *said]).store_access
    assert access is not None
    assert access.tls == EtcdTlsFiles(Path("ca"), Path("own"), Path("key"))


def test_what_was_given_is_passed_on_to_other_processes() -> None:
    options = AccessOptions(user="me", password_file=Path("p"), key=Path("k"))
    assert options.named() == [
        ("--store-user", "me"),
        ("--store-password-file", "p"),
        ("--store-key", "k"),
    ]


@pytest.mark.parametrize(
    ("store", "options", "reason"),
    [
        (None, AccessOptions(user="me"), "--store-user is for etcd"),
        ("sqlite:file", AccessOptions(ca=Path("ca")), "--store-ca is for etcd"),
        (ETCD, AccessOptions(ca=Path("ca")), "begin the address of --store with etcds://"),
        (ETCD, AccessOptions(user="me"), "user 'me' of the coordination store has no password"),
        (ETCD, AccessOptions(password_file=Path("/missing")), "/missing cannot be read: No such"),
        (ETCD, AccessOptions(password_file=Path("/dev/null")), "/dev/null is empty"),
        ("etcd://h1/a b", AccessOptions(), "has the prefix 'a b'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    store: str | None, options: AccessOptions, reason: str
) -> None:
    with pytest.raises(UsageRefused) as refused:
        read_access(store, options)
    assert reason in str(refused.value)


def test_a_password_without_a_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2")
    with pytest.raises(UsageRefused, match="no user: give --store-user") as refused:
        read_access(ETCD, AccessOptions(password_file=file))
    assert "hunter2" not in str(refused.value)
