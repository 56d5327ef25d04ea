"""The options that a member of etcd is started with, and those that are refused."""

from pathlib import Path

import pytest

from ottla.cli.store_member import Member
from ottla.errors import UsageRefused

THREE = "n1=10.0.0.1,n2=10.0.0.2:2390,n3=h3.example.org"


def options_of(member: Member) -> dict[str, str]:
    arguments = member.arguments
    pairs = [one.split("=", 1) for one in arguments if one.startswith("--") and "=" in one]
    named = [one for one in arguments if not (one.startswith("--") and "=" in one)]
    return dict(pairs) | dict(zip(named[::2], named[1::2], strict=True))


def test_a_member_listens_on_its_address_and_knows_the_others() -> None:
    assert options_of(Member.of("n2", THREE, Path("/d"), 2379, "")) == {
        "--name": "n2",
        "--data-dir": "/d",
        "--listen-peer-urls": "http://10.0.0.2:2390",
        "--initial-advertise-peer-urls": "http://10.0.0.2:2390",
        "--listen-client-urls": "http://10.0.0.2:2379,http://127.0.0.1:2379",
        "--advertise-client-urls": "http://10.0.0.2:2379",
        "--initial-cluster": (
            "n1=http://10.0.0.1:2380,n2=http://10.0.0.2:2390,n3=http://h3.example.org:2380"
        ),
        "--initial-cluster-state": "new",
        "--initial-cluster-token": "ottla",
        "--auto-compaction-mode": "periodic",
        "--auto-compaction-retention": "1h",
        "--quota-backend-bytes": "2147483648",
    }


def test_a_name_is_advertised_and_every_address_listened_on() -> None:
    options = options_of(Member.of("n3", THREE, Path("/d"), 4001, ""))
    assert options["--listen-client-urls"] == "http://0.0.0.0:4001"
    assert options["--advertise-client-urls"] == "http://h3.example.org:4001"
    named = options_of(Member.of("n3", THREE, Path("/d"), 4001, "10.0.0.3"))
    assert named["--listen-peer-urls"] == "http://10.0.0.3:2380"
    local = options_of(Member.of("a", "a=localhost", Path("/d"), 4001, ""))
    assert local["--listen-client-urls"] == "http://127.0.0.1:4001"


@pytest.mark.parametrize(
    ("name", "members", "port", "reason"),
    [
        ("n4", THREE, 2379, "--name n4 is none of --members: n1, n2, n3"),
        ("n1", "n1", 2379, "'n1', which is not NAME=HOST"),
        ("n1", "n1=h:0", 2379, "'n1=h:0', which is not NAME=HOST"),
        ("n1", "n1=h1,n1=h2", 2379, "names n1 twice"),
        ("n1", "n1=h1,n2=h1", 2379, "names the address h1:2380 twice"),
        ("n1", "n1=h1", 0, "--client-port 0 is not"),
        ("n1", "n1=h1", 2380, "2380 cannot be the port for brokers and for members"),
    ],
)
def test_members_that_cannot_be_meant_are_refused(
    name: str, members: str, port: int, reason: str
) -> None:
    with pytest.raises(UsageRefused) as refused:
        Member.of(name, members, Path("/d"), port, "")
    assert reason in str(refused.value)
