"""URLs of an etcd cluster, and those that are refused with the reason."""

import pytest

from ottla.cluster.etcd_address import EtcdAddress
from ottla.errors import UsageRefused
from ottla.model import Endpoint


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("etcd://h1/ottla", EtcdAddress((Endpoint("h1", 2379),), "ottla/", is_tls=False)),
        ("etcd://h1:2380", EtcdAddress((Endpoint("h1", 2380),), "ottla/", is_tls=False)),
        ("etcd://h1/", EtcdAddress((Endpoint("h1", 2379),), "ottla/", is_tls=False)),
        (
            "etcd://h1:2379,h-2.example.com:22379/a/b-c_d.e/",
            EtcdAddress(
                (Endpoint("h1", 2379), Endpoint("h-2.example.com", 22379)),
                "a/b-c_d.e/",
                is_tls=False,
            ),
        ),
        (
            "etcds://[::1]:1,10.0.0.1/x",
            EtcdAddress((Endpoint("::1", 1), Endpoint("10.0.0.1", 2379)), "x/", is_tls=True),
        ),
    ],
)
def test_a_url_names_servers_and_prefix(url: str, address: EtcdAddress) -> None:
    assert EtcdAddress.parse(url) == address


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "does not begin with etcd://"),
        ("h1:2379/ottla", "does not begin with etcd://"),
        ("http://h1:2379/ottla", "does not begin with etcd://"),
        ("etcd:/h1/ottla", "does not begin with etcd://"),
        ("etcd+https://h1:2379/ottla", "does not begin with etcd://"),
        ("etcd://h1/a//b", "has the prefix 'a//b'"),
        ("etcd://h1//a", "has the prefix '/a'"),
        ("etcd://h1/a b", "has the prefix 'a b'"),
        ("etcd://h1/a\x00", "has the prefix"),
        ("etcd:///a", "names the server ''"),
        ("etcd://h1,/a", "names the server ''"),
        ("etcd://h1:0/a", "names the server 'h1:0'"),
        ("etcd://h1:65536/a", "names the server 'h1:65536'"),
        ("etcd://h1:x/a", "names the server 'h1:x'"),
        ("etcd://::1/a", "names the server '::1'"),
        ("etcd://h1,h1:2379/a", "names a server twice"),
        ("etcd://h1/a?timeout=3", "has a query or a fragment"),
        ("etcd://h1/a#b", "has a query or a fragment"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, reason: str) -> None:
    with pytest.raises(UsageRefused) as refused:
        EtcdAddress.parse(url)
    assert reason in str(refused.value)
    assert "for example etcd://" in str(refused.value)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageRefused, match="--store-password-file") as refused:
        EtcdAddress.parse("etcd://root:hunter2@h1/ottla")
    assert "hunter2" not in str(refused.value)
