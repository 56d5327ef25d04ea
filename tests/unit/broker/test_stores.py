"""The coordination store that a command line names, and the name of a machine."""

import asyncio
from pathlib import Path

import pytest

from ottla.broker.stores import environment_of, machine_name
from ottla.clock import SystemClock
from ottla.cluster.etcd_address import EtcdAccess
from ottla.cluster.values import ClusterId
from ottla.errors import UsageRefused


def test_without_a_store_a_broker_has_its_own() -> None:
    environment = environment_of(None, EtcdAccess())
    assert environment.has_own_store
    assert (environment.boot_id, environment.machine_id) == ("", "")


def test_brokers_share_a_file(tmp_path: Path) -> None:
    environment = environment_of(f"sqlite:{tmp_path / 'cluster.sqlite'}", EtcdAccess())
    assert not environment.has_own_store

    async def open_and_close() -> None:
        store = await environment.open_store(tmp_path / "data", SystemClock())
        await store.close()

    asyncio.run(open_and_close())
    assert (tmp_path / "cluster.sqlite").is_file()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("store", ["", "sqlite:", "sqlite:..", "cluster.sqlite", "http://host"])
def test_anything_else_is_refused_with_what_to_write(store: str) -> None:
    with pytest.raises(UsageRefused, match="give sqlite:FILE"):
        environment_of(store, EtcdAccess())


def test_a_file_in_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="does not exist"):
        environment_of(f"sqlite:{tmp_path / 'missing' / 'cluster.sqlite'}", EtcdAccess())


def test_a_machine_has_another_name_in_each_cluster() -> None:
    one, two = ClusterId("one"), ClusterId("two")
    assert machine_name("id", one) == machine_name("id", one)
    assert len({machine_name("id", one), machine_name("id", two), machine_name("other", one)}) == 3
    assert machine_name("", one) is None
