"""Versions of etcd that are refused, and those that need a warning."""

import pytest

from ottla.cluster.etcd_version import check_version
from ottla.errors import UsageRefused


@pytest.mark.parametrize("version", ["2.3.8", "3.3.27", "3.5.0", "3.5.1", "3.5.2", "3.5.0-rc.1"])
def test_a_version_that_cannot_be_used_is_refused(version: str) -> None:
    with pytest.raises(UsageRefused, match=f"h1:2379 is {version}"):
        check_version("h1:2379", version)


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("3.4.0", "3.4.38"),
        ("3.4.37", "3.4.38"),
        ("3.5.3", "3.5.23"),
        ("3.5.22", "3.5.23"),
        ("3.6.4", "3.6.5"),
    ],
)
def test_a_version_with_defects_in_leases_is_warned_about(version: str, wanted: str) -> None:
    assert f"use {wanted} or newer" in (check_version("h1:2379", version) or "")


@pytest.mark.parametrize("version", ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "4.0.0-alpha.1"])
def test_a_version_without_known_defects_is_fine(version: str) -> None:
    assert check_version("h1:2379", version) is None


def test_a_version_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UsageRefused, match="'unknown', which cannot be read"):
        check_version("h1:2379", "unknown")
