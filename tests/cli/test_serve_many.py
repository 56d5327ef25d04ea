"""`ottla serve --brokers K`: several brokers under one command."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cli.processes import COMMAND, PATIENCE_S, run_ottla, wait_until
from crash.processes import free_port
from ottla.broker.app import ServeOptions
from ottla.cli.serve_many import children
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint

READY = "ottla ready on "


class Supervised:
    """A process with three brokers below it."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process = process
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})

    def children(self) -> dict[int, int]:
        """The process ids of the brokers that run, by node id."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) in _descendants(self.process.pid):
                arguments = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
                if "--node-id" in arguments:
                    found[int(arguments[arguments.index("--node-id") + 1])] = int(entry)
        return found

    def live(self) -> int:
        """The number of brokers that are alive: unlike Metadata, DescribeCluster has no others."""
        nodes = self.admin.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S).nodes
        return len(nodes)


def _descendants(parent: int) -> set[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return set(map(int, text.split()))


@contextmanager
def supervised(data: Path) -> Iterator[Supervised]:
    port = free_port(3)
    arguments = ["serve", "--brokers", "3", "--data", str(data), "--listen", f"127.0.0.1:{port}"]
    settings = ["--set", "broker.session.timeout.ms=2000"]
    with (data.parent / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, *arguments, *settings], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), (data.parent / "log").read_text()
        yield Supervised(process, line.removeprefix(READY).strip())
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_three_brokers_share_a_store_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path / "data") as running:
        (created,) = running.admin.create_topics([NewTopic("orders", 3, 3)]).values()
        created.result(PATIENCE_S)
        before = running.children()
        assert sorted(before) == [0, 1, 2]
        os.kill(before[1], signal.SIGKILL)
        wait_until(lambda: running.children().get(1, before[1]) != before[1], "started again")
        wait_until(lambda: running.live() == 3, "all three are there")
        running.process.send_signal(signal.SIGTERM)
        left = running.children().values()
        assert running.process.wait(PATIENCE_S) == 0
        assert not any(map(is_running, left))
    assert sorted(path.name for path in (tmp_path / "data").iterdir() if path.is_dir()) == [
        "broker0",
        "broker1",
        "broker2",
    ]


def test_brokers_do_not_outlive_the_process_that_started_them(tmp_path: Path) -> None:
    with supervised(tmp_path / "data") as running:
        left = running.children()
        assert len(left) == 3
        running.process.kill()
        wait_until(lambda: not any(map(is_running, left.values())), "all have ended")


def test_a_port_that_is_taken_ends_all_with_one_line(tmp_path: Path) -> None:
    with supervised(tmp_path / "first") as running:
        port = running.address.split(",")[0].rpartition(":")[2]
        refused = run_ottla(
            *("serve", "--brokers", "2", "--listen", f"127.0.0.1:{port}"),
            *("--data", str(tmp_path / "second")),
        )
        assert refused.returncode == 2
        assert "address already in use" in refused.stderr


def test_ports_directories_and_ids_are_counted_up() -> None:
    options = ServeOptions(
        data=Path("d"),
        listen=Endpoint("h", 9092),
        node_id=BrokerId(5),
        advertise=Endpoint("name", 19092),
        metrics=Endpoint("h", 9100),
    )
    first, second = children(options, 2, ["--set", "a=b"])
    assert (first.node_id, second.node_id) == (5, 6)
    text = " ".join(second.arguments)
    assert "--data d/broker6 --listen h:9093 --node-id 6 --store sqlite:d/cluster.sqlite" in text
    assert "--advertise name:19093 --metrics h:9101 --set a=b" in text


@pytest.mark.parametrize("port", [0, 65534])
def test_ports_that_cannot_be_counted_up_are_refused(port: int) -> None:
    options = ServeOptions(data=Path("d"), listen=Endpoint("h", port))
    with pytest.raises(UsageRefused, match="port"):
        children(options, 3, [])


def test_the_directory_of_one_broker_is_not_made_one_of_several(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    options = ServeOptions(data=tmp_path, listen=Endpoint("h", 9092))
    with pytest.raises(UsageRefused, match="holds the data of one broker: start it without"):
        children(options, 3, [])
