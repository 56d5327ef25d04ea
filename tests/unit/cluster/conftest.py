"""One etcd for all tests of this folder; they keep apart by their prefixes."""

from collections.abc import Iterator

import pytest

from fakes.etcd_process import EtcdProcess, running


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    server = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    with running(server):
        yield server
