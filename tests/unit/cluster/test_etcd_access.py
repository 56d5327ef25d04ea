"""Getting in to etcd: its users and tokens, TLS, and what stands in a server's place."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from crash.processes import free_port
from fakes.etcd_process import EtcdProcess, base64_of, etcd_program, running
from fakes.etcd_wire import proxy_of
from fakes.loopback import run
from ottla.cluster.etcd_address import EtcdAddress, EtcdCredentials, EtcdTlsFiles
from ottla.cluster.store import KeyChange, Put, StoreUnavailable
from ottla.cluster.store_etcd import EtcdStore
from ottla.errors import UsageRefused
from ottla.model import Endpoint

WAIT_S: Final = 120.0
USER: Final = EtcdCredentials("ottla", "secret")
PREFIX: Final = "ottla/"


@asynccontextmanager
async def opened(
    address: EtcdAddress,
    *,
    tls: EtcdTlsFiles | None = None,
    credentials: EtcdCredentials | None = None,
) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(address, tls=tls, credentials=credentials, timeout_s=WAIT_S)
    try:
        yield store
    finally:
        await store.close()


def open_and_close(
    address: EtcdAddress,
    *,
    tls: EtcdTlsFiles | None = None,
    credentials: EtcdCredentials | None = None,
) -> None:
    async def scenario() -> None:
        async with opened(address, tls=tls, credentials=credentials):
            pass

    run(scenario(), WAIT_S)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd with a user that may use one prefix, and one that may nothing."""
    etcd = EtcdProcess(tmp_path_factory.mktemp("guarded"), "--bcrypt-cost", "4")
    with running(etcd):
        permission = {
            "permType": "READWRITE",
            "key": base64_of(PREFIX.encode()),
            "range_end": base64_of(b"ottla0"),
        }
        for path, body in (
            ("user/add", {"name": "root", "password": "root"}),
            ("user/add", {"name": USER.user, "password": USER.password}),
            ("user/add", {"name": "stranger", "password": "strange"}),
            ("role/add", {"name": "root"}),
            ("role/add", {"name": "store"}),
            ("role/grant", {"name": "store", "perm": permission}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/grant", {"user": USER.user, "role": "store"}),
            ("enable", {}),
        ):
            assert "error" not in etcd.request("POST", f"/v3/auth/{path}", body)
        yield etcd


def test_a_user_reads_writes_watches_and_holds_leases_below_the_prefix(
    guarded: EtcdProcess,
) -> None:
    async def scenario() -> None:
        async with opened(guarded.address("ottla"), credentials=USER) as store:
            begin = (await store.range("")).revision
            lease = await store.grant(100_000)
            await store.commit([Put("a", b"1", lease)])
            await store.keep_alive(lease)
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert (await anext(watch)).changes == (KeyChange("a", b"1"),)
                await store.revoke(lease)
                assert (await anext(watch)).changes == (KeyChange("a", None),)

    run(scenario(), WAIT_S)


def test_a_token_that_is_no_longer_accepted_is_renewed_once(guarded: EtcdProcess) -> None:
    async def scenario() -> None:
        async with (
            proxy_of(guarded.endpoint) as proxy,
            opened(proxy.address("ottla"), credentials=USER) as store,
        ):
            proxy.path = "/v3/auth/authenticate"
            before = await store.commit([Put("token", b"1")])
            await asyncio.gather(*(store.get("token") for _ in range(8)))  # all connections
            await end_tokens(guarded)
            second = await store.commit([Put("token", b"2")])
            assert second == before + 1, "written once"
            assert proxy.request_count == 1
            await end_tokens(guarded)
            await asyncio.gather(*(store.commit([Put(f"{n}", b"")]) for n in range(8)))
            assert proxy.request_count == 2
            await end_tokens(guarded)
            async with contextlib.aclosing(store.watch("", before)) as watch:
                assert (await anext(watch)).revision == second
            assert proxy.request_count == 3

    run(scenario(), WAIT_S)


async def end_tokens(guarded: EtcdProcess) -> None:
    """Have etcd forget the tokens of the user, as it does after a while or when it restarts."""
    login = {"name": "root", "password": "root"}
    token = (await guarded.post("/v3/auth/authenticate", login))["token"]
    change = {"name": USER.user, "password": USER.password}
    response = await asyncio.to_thread(
        guarded.request, "POST", "/v3/auth/user/changepw", change, {"Authorization": token}
    )
    assert "error" not in response


@pytest.mark.parametrize(
    ("credentials", "refusal"),
    [
        (None, "needs a user and a password"),
        (EtcdCredentials("ottla", "wrong"), "does not let user 'ottla' in"),
        (EtcdCredentials("nobody", "secret"), "does not let user 'nobody' in"),
        (EtcdCredentials("stranger", "strange"), "not read and write below the prefix"),
    ],
)
def test_a_client_that_may_not_use_the_prefix_is_refused(
    guarded: EtcdProcess, credentials: EtcdCredentials | None, refusal: str
) -> None:
    with pytest.raises(UsageRefused, match=refusal):
        open_and_close(guarded.address("ottla"), credentials=credentials)


def test_a_user_where_etcd_asks_for_none_is_warned_about(
    etcd: EtcdProcess, caplog: pytest.LogCaptureFixture
) -> None:
    open_and_close(etcd.address("ottla"), credentials=USER)
    assert "etcd authentication is off" in [record.message for record in caplog.records]
    assert USER.password not in repr(USER)


@dataclass(frozen=True)
class Certificates:
    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / name

    @property
    def client(self) -> EtcdTlsFiles:
        return EtcdTlsFiles(self.file("ca.pem"), self.file("client.pem"), self.file("client.key"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, a certificate of a server and one of a client, and another authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: it is in the Debian package openssl")
    folder = tmp_path_factory.mktemp("certificates")
    new_key = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    # From 3.13 on Python asks an authority's certificate what it may be used for.
    authority = "-addext keyUsage=critical,keyCertSign,cRLSign"
    signed = "-CA ca.pem -CAkey ca.key -addext subjectAltName=IP:127.0.0.1"
    signed += " -addext basicConstraints=critical,CA:FALSE"
    for command in (
        f"{new_key} -x509 -subj /CN=authority -keyout ca.key -out ca.pem {authority}",
        f"{new_key} -x509 -subj /CN=other -keyout other.key -out other.pem {authority}",
        f"{new_key} -x509 -subj /CN=server -keyout server.key -out server.pem {signed}",
        f"{new_key} -x509 -subj /CN=client -keyout client.key -out client.pem {signed}",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return Certificates(folder)


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[EtcdProcess]:
    """An etcd that shows its certificate and asks clients for theirs."""
    etcd = EtcdProcess(
        tmp_path_factory.mktemp("secured"),
        *("--cert-file", str(certificates.file("server.pem"))),
        *("--key-file", str(certificates.file("server.key"))),
        *("--trusted-ca-file", str(certificates.file("ca.pem")), "--client-cert-auth"),
    )
    etcd.tls = ssl.create_default_context(cafile=certificates.file("ca.pem"))
    etcd.tls.load_cert_chain(certificates.file("client.pem"), certificates.file("client.key"))
    with running(etcd):
        yield etcd


def test_a_store_is_used_over_tls_with_a_client_certificate(
    secured: EtcdProcess, certificates: Certificates
) -> None:
    async def scenario() -> None:
        async with opened(secured.address("ottla"), tls=certificates.client) as store:
            begin = (await store.range("")).revision
            await store.commit([Put("a", bytes(200_000))])
            async with contextlib.aclosing(store.watch("", begin)) as watch:
                assert (await anext(watch)).changes == (KeyChange("a", bytes(200_000)),)

    run(scenario(), WAIT_S)
    asyncio.run(scenario())


def test_an_authority_that_is_not_trusted_is_said(
    secured: EtcdProcess, certificates: Certificates
) -> None:
    for ca in (certificates.file("other.pem"), None):
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            open_and_close(secured.address("ottla"), tls=EtcdTlsFiles(ca))


def test_a_missing_client_certificate_is_refused_by_the_server(
    secured: EtcdProcess, certificates: Certificates
) -> None:
    with pytest.raises(StoreUnavailable, match=str(secured.endpoint)):
        open_and_close(secured.address("ottla"), tls=EtcdTlsFiles(certificates.file("ca.pem")))


def test_tls_on_one_side_only_is_said(
    etcd: EtcdProcess, secured: EtcdProcess, certificates: Certificates
) -> None:
    with pytest.raises(StoreUnavailable, match="begin the URL with etcds://"):
        open_and_close(EtcdAddress((secured.endpoint,), PREFIX, is_tls=False))
    with pytest.raises(StoreUnavailable, match=r"cannot be reached over TLS: .+"):
        open_and_close(EtcdAddress((etcd.endpoint,), PREFIX, is_tls=True), tls=certificates.client)


@pytest.mark.parametrize(
    ("files", "refusal"),
    [
        (("missing.pem", None, None), "cannot be used as etcd's certificate authority"),
        (("ca.key", None, None), "cannot be used as etcd's certificate authority"),
        (("ca.pem", "missing.pem", None), "cannot be used as client certificate"),
        (("ca.pem", "client.pem", None), "key: in the same file"),
        (("ca.pem", "client.pem", "server.key"), "cannot be used as client certificate"),
        (("ca.pem", "client.pem", "locked.key"), "the key has a passphrase"),
        (("ca.pem", None, "client.key"), "without a client certificate"),
    ],
)
def test_files_for_tls_that_are_of_no_use_are_refused(
    certificates: Certificates, files: tuple[str | None, str | None, str | None], refusal: str
) -> None:
    lock = "openssl ec -in client.key -aes128 -passout pass:secret -out locked.key"
    subprocess.run(lock.split(), cwd=certificates.folder, check=True, capture_output=True)
    ca, certificate, key = (None if name is None else certificates.file(name) for name in files)
    with pytest.raises(UsageRefused, match=refusal):
        EtcdTlsFiles(ca, certificate, key).context()


def test_a_grpc_proxy_is_refused(etcd: EtcdProcess, tmp_path: Path) -> None:
    proxy = Endpoint("127.0.0.1", free_port())
    command = [etcd_program(), "grpc-proxy", "start", f"--endpoints={etcd.endpoint}"]
    process = subprocess.Popen(
        [*command, f"--listen-addr={proxy}", f"--advertise-client-url={proxy}"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    async def scenario() -> None:
        while True:
            try:
                await EtcdStore.open(EtcdAddress((proxy,), PREFIX, is_tls=False))
            except StoreUnavailable:
                await asyncio.sleep(0.05)  # it does not listen yet

    try:
        with pytest.raises(UsageRefused, match="gRPC proxy"):
            run(scenario(), WAIT_S)
    finally:
        process.kill()
        process.wait(WAIT_S)
