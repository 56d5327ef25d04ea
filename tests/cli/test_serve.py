"""`ottla serve`: starting, stopping, and every reason not to start."""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from cli.processes import COMMAND, PATIENCE_S, RunningBroker, call_ottla, run_ottla, start_broker
from ottla.cli.serve import choose_advertised
from ottla.errors import UsageRefused
from ottla.model import Endpoint


def test_a_broker_keeps_what_it_was_given(tmp_path: Path) -> None:
    first = start_broker(tmp_path / "data")
    call_ottla("produce", "kept", broker=first.address, stdin="one\ntwo\n")
    assert first.stop() == 0
    second = start_broker(tmp_path / "data")
    assert call_ottla("consume", "kept", broker=second.address).stdout == "one\ntwo\n"
    assert second.stop() == 0


def test_ctrl_c_stops_a_broker_cleanly(tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(PATIENCE_S) == 0
    assert broker.process.stdout is not None
    broker.process.stdout.close()


def test_settings_reach_the_broker(tmp_path: Path) -> None:
    config = tmp_path / "ottla.toml"
    config.write_text('"num.partitions" = 3\n"auto.create.topics.enable" = false\n')
    broker = start_broker(tmp_path / "data", "--config", str(config), "--set", "num.partitions=2")
    unknown = call_ottla("produce", "unmade", broker=broker.address, stdin="x\n")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("ottla: topic unmade: it does not exist; ")
    call_ottla("topic", "create", "made", broker=broker.address)
    listed = call_ottla("topic", "list", broker=broker.address).stdout
    assert ["made", "2", "1"] in [row.split() for row in listed.splitlines()]
    broker.stop()


def test_every_address_is_advertised_as_the_name_of_this_host(tmp_path: Path) -> None:
    """Which a host without a usable name cannot: then the broker says what to do."""
    chosen = None
    with suppress(UsageRefused):
        chosen = choose_advertised(Endpoint("0.0.0.0", 0), None)
    if chosen is None:
        said = refused("--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0")
        assert "add --advertise HOST:PORT" in said
        return
    broker = start_broker(tmp_path / "data", "--listen", "0.0.0.0:0", "--hints")
    port = int(broker.address.rpartition(":")[2])
    (logged,) = [
        line
        for line in (tmp_path / "data.log").read_text().splitlines()
        if "clients are given the name of this host" in line
    ]
    assert f"listen=0.0.0.0:0 advertised={chosen.host} " in logged
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    (found,) = admin.list_topics(timeout=PATIENCE_S).brokers.values()
    assert f"{found.host}:{found.port}" == f"{chosen.host}:{port}"
    assert broker.stop() == 0


def test_an_advertised_port_of_zero_is_the_one_that_is_listened_on(tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data", "--advertise", "localhost:0")
    admin = AdminClient({"bootstrap.servers": broker.address})
    (found,) = admin.list_topics(timeout=PATIENCE_S).brokers.values()
    assert f"{found.host}:{found.port}" == broker.address.replace("127.0.0.1", "localhost")
    assert broker.stop() == 0


def refused(*arguments: str) -> str:
    """What a broker that cannot start says, in one line, with status 2."""
    done = run_ottla("serve", *arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("ottla: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused("--data", str(tmp_path / "data"), "--listen", address)
    assert address in said
    assert "--listen" in said


def test_two_brokers_do_not_share_a_directory(broker: RunningBroker) -> None:
    said = refused("--data", str(broker.data), "--listen", "127.0.0.1:0")
    assert "in use by another broker" in said


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert str(file) in refused("--data", str(file / "data"), "--listen", "127.0.0.1:0")


def test_bad_settings_are_one_line(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    assert "unknown broker setting: nonsense" in refused("--data", data, "--set", "nonsense=1")
    assert "is not HOST:PORT" in refused("--data", data, "--listen", "here")
    assert not (tmp_path / "data").exists()


def test_a_broker_that_is_not_there_is_one_line_that_says_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for command in (["topic", "list"], ["consume", "t"], ["produce", "t"]):
        done = call_ottla(*command, "--broker", address)
        assert done.returncode == 1
        assert done.stderr.startswith(f"ottla: no broker can be reached ({address}: connection")
        assert "`ottla serve` starts a broker, --broker names another" in done.stderr
        assert done.stderr.count("\n") == 1


def test_something_else_behind_the_port_is_recognised() -> None:
    with socket.socket() as web_server:
        web_server.bind(("127.0.0.1", 0))
        web_server.listen()
        address = f"127.0.0.1:{web_server.getsockname()[1]}"
        command = subprocess.Popen(
            [*COMMAND, "topic", "list", "--broker", address], stderr=subprocess.PIPE, text=True
        )
        connection, _ = web_server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        _, said = command.communicate(timeout=PATIENCE_S)
        connection.close()
    assert command.returncode == 1
    assert f"{address}: it speaks HTTP, not Kafka's protocol" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "place",
    [
        f"kept-0/{0:020d}.log",
        "kept-0/partition.metadata",
        "log-states",
        "recovery-point-offset-checkpoint",
    ],
)
def test_a_disk_that_cannot_be_read_is_one_line_that_names_the_place(
    place: str, tmp_path: Path
) -> None:
    """A directory where a file should be cannot be read by anybody, not even by root."""
    data = tmp_path / "data"
    broker = start_broker(data)
    call_ottla("produce", "kept", broker=broker.address, stdin="one\ntwo\n")
    assert broker.stop() == 0
    (data / place).rename(tmp_path / "aside")
    (data / place).mkdir()
    done = run_ottla("serve", "--data", str(data), "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    *logged, last = done.stderr.splitlines()
    assert last.startswith(f"ottla: the broker's disk has failed: {data / place} cannot be opened")
    assert "repair what is there" in last
    assert [line for line in logged if "ottla.storage data directory offline" in line]
    assert not [line for line in logged if "Traceback" in line]
    (data / place).rmdir()
    (tmp_path / "aside").rename(data / place)
    broker = start_broker(data)
    assert call_ottla("consume", "kept", broker=broker.address).stdout == "one\ntwo\n"
    assert broker.stop() == 0


# Starts a broker, and when it is ready prints its memory and its modules, and asks itself to end.
_WATCHED = """
import os, signal, sys
from pathlib import Path
from ottla.cli.main import run

class Watch:
    def write(self, text):
        if text.startswith("ottla ready on "):
            status = Path("/proc/self/status").read_text()
            resident_kb = status.partition("VmRSS:")[2].split()[0]
            print(resident_kb, *sorted(sys.modules), file=sys.__stdout__, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

    def flush(self):
        pass

sys.stdout = Watch()
sys.exit(run(["serve", "--listen", "127.0.0.1:0", "--data", sys.argv[1]]))
"""


def test_a_broker_that_is_ready_has_loaded_little(tmp_path: Path) -> None:
    """What is imported decides how long a start takes; `make bench` has the time itself."""
    command = [sys.executable, "-c", _WATCHED, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    resident_kb, *modules = done.stdout.split()
    assert int(resident_kb) < 60_000
    assert len(modules) < 399
    ours = [name for name in modules if name.startswith("ottla.")]
    assert not [
        name
        for name in ours
        if name.startswith(
            ("ottla.coordinator.groups", "ottla.coordinator.transactions", "ottla.client")
        )
    ]
    assert len([name for name in ours if name.startswith("ottla.broker.handlers.")]) <= 4
    assert len([name for name in ours if name.startswith("ottla.protocol.messages.")]) <= 2
