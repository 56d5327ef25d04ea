"""etcd from the command line: its members, its state, and brokers that it refuses."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.processes import (
    COMMAND,
    PATIENCE_S,
    call_ottla,
    run_ottla,
    start_broker,
    wait_until,
)
from crash.processes import free_port
from fakes.etcd_process import EtcdProcess, etcd_program, running
from ottla.clock import SystemClock
from ottla.cluster import layout
from ottla.cluster.store import Put
from ottla.cluster.store_sqlite import SqliteStore
from ottla.cluster.values import partition_key
from ottla.model import LeaderEpoch


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    server = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    with running(server):
        yield server


@contextmanager
def member(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A member that `ottla store serve` runs: the process becomes etcd."""
    environment = {name: text for name, text in os.environ.items() if name[:5] != "ETCD_"}
    with (folder / "members.log").open("ab") as log:
        process = subprocess.Popen(
            [*COMMAND, "store", "serve", "--etcd", etcd_program(), *arguments],
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def status(store: str) -> tuple[int, dict[str, Any]]:
    done = run_ottla("store", "status", "--store", store, "--json")
    assert done.stdout, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, row


def problems(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in row["members"] if one["problem"]]


@pytest.mark.slow
def test_members_are_started_by_one_command_each_and_their_state_is_shown(tmp_path: Path) -> None:
    peers, clients = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    members = ",".join(f"n{index}=127.0.0.1:{port}" for index, port in enumerate(peers))
    store = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in clients) + "/here"

    def start(index: int) -> "subprocess.Popen[bytes]":
        return started.enter_context(
            member(
                tmp_path,
                *("--name", f"n{index}", "--members", members),
                *("--data", str(tmp_path / f"n{index}"), "--client-port", str(clients[index])),
            )
        )

    with ExitStack() as started:
        processes = [start(index) for index in range(3)]
        wait_until(lambda: status(store)[0] == 0, "all members serve")
        code, row = status(f"etcd://127.0.0.1:{clients[0]}/here")
        assert (code, row["health"]) == (0, "healthy")
        assert sorted(one["name"] for one in row["members"]) == ["n0", "n1", "n2"]
        assert sorted(one["role"] for one in row["members"]) == ["follower", "follower", "leader"]
        assert all(one["size_bytes"] > 0 and one["version"] for one in row["members"])
        assert row["revision"] >= 1
        assert row["cluster"] is None
        processes[0].kill()
        processes[0].wait(PATIENCE_S)
        # The others have a problem too while they elect a leader.
        wait_until(lambda: len(problems(status(store)[1])) == 1, "one member alone is missed")
        code, row = status(store)
        assert (code, row["health"]) == (3, "degraded")
        (dead,) = problems(row)
        assert dead["name"] == "n0"
        assert "cannot be reached" in dead["problem"]
        shown = run_ottla("store", "status", "--store", store)
        assert shown.returncode == 3
        assert "degraded" in shown.stdout
        assert "cannot be reached" in shown.stderr
        processes[1].kill()
        processes[1].wait(PATIENCE_S)
        code, row = status(store)
        assert (code, row["health"]) == (1, "unreachable")
        assert row["revision"] is None
        processes[0] = start(0)  # finds its data
        wait_until(lambda: status(store)[0] == 3, "two members serve again")


def test_a_broker_on_etcd_is_shown_and_its_directory_belongs_to_its_cluster(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    store = f"etcd://{etcd.endpoint}"
    data = tmp_path / "data"
    broker = start_broker(data, "--store", f"{store}/one", "--node-id", "4")
    try:
        code, row = status(f"{store}/one")
        assert code == 0
        assert row["brokers"] == [{"id": 4, "address": broker.address}]
        assert row["cluster"]
        (alone,) = row["members"]
        assert alone["role"] == "leader"
        alarm = {"memberID": int(alone["id"], 16), "alarm": "NOSPACE"}
        etcd.request("POST", "/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        code, row = status(f"{store}/one")
        assert (code, row["alarms"]) == (3, [f"NOSPACE of member {alone['id']}"])
        etcd.request("POST", "/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        assert status(f"{store}/one")[0] == 0
    finally:
        assert broker.stop() == 0
    assert status(f"{store}/one")[1]["brokers"] == []
    for more, reason in (
        (("--store", f"{store}/other", "--node-id", "4"), "name its store with --store"),
        (("--store", f"{store}/one", "--node-id", "5"), "start it with --node-id 4"),
    ):
        refused = serve(data, *more)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr.splitlines()[-1]


def test_several_brokers_of_one_command_use_etcd(etcd: EtcdProcess, tmp_path: Path) -> None:
    store = f"etcd://{etcd.endpoint}/many"
    listen = f"127.0.0.1:{free_port(2)}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(*COMMAND, "serve", "--brokers", "2", "--data", str(tmp_path / "data")),
                *("--listen", listen, "--node-id", "10", "--store", store),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ottla ready on "), (
            tmp_path / "log"
        ).read_text()
        assert [one["id"] for one in status(store)[1]["brokers"]] == [10, 11]
        assert not (tmp_path / "data" / "cluster.sqlite").exists()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert status(store)[1]["brokers"] == []
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def serve(data: Path, *more: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A broker that is expected not to start."""
    return subprocess.run(
        [*COMMAND, "serve", "--data", str(data), "--listen", "127.0.0.1:0", *more],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def test_a_store_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    plain = EtcdProcess(tmp_path, "--enable-grpc-gateway=false", name="plain")
    guarded = EtcdProcess(tmp_path, "--bcrypt-cost", "4", name="guarded")
    password = {"OTTLA_STORE_USER": "root", "OTTLA_STORE_PASSWORD": "hunter2"}
    with running(plain, guarded):
        for path, body in (
            ("user/add", {"name": "root", "password": "root"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            assert "error" not in guarded.request("POST", f"/v3/auth/{path}", body)
        for store, environment, reason in (
            (f"etcd://127.0.0.1:{free_port()}", {}, "cannot be reached"),
            (f"etcd://{plain.endpoint}", {}, "has no JSON gateway"),
            (f"etcd://{guarded.endpoint}", {}, "needs a user and a password"),
            (f"etcd://{guarded.endpoint}", password, "does not let user 'root' in"),
            (f"etcd://root:hunter2@{guarded.endpoint}", {}, "not in it"),
        ):
            refused = serve(tmp_path / "data", "--store", store, **environment)
            assert (refused.returncode, refused.stdout) == (2, "")
            errors = [one for one in refused.stderr.splitlines() if one.startswith("ottla: ")]
            assert len(errors) == 1
            assert reason in errors[0]
            assert "hunter2" not in refused.stderr
        code = run_ottla("store", "status", "--store", f"etcd://{guarded.endpoint}").returncode
        assert code == 2


def test_a_store_of_one_machine_has_a_state_too(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'cluster.sqlite'}"
    code, row = status(store)
    assert (code, row["health"]) == (1, "unreachable")
    assert not (tmp_path / "cluster.sqlite").exists(), "it is not made"
    broker = start_broker(tmp_path / "data", "--store", store)
    try:
        code, row = status(store)
        assert (code, row["health"], row["kind"]) == (0, "healthy", "sqlite")
        assert row["brokers"] == [{"id": 0, "address": broker.address}]
        assert row["revision"] > 0
    finally:
        assert broker.stop() == 0
    refused = run_ottla("store", "status", "--store", "zookeeper:2181")
    assert refused.returncode == 2
    assert "is not a coordination store" in refused.stderr


def test_a_store_that_knows_less_than_the_logs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    for _ in range(2):  # the second time in a higher epoch
        broker = start_broker(tmp_path / "data", "--store", f"sqlite:{path}")
        try:
            produced = call_ottla("produce", "orders", broker=broker.address, stdin="a record\n")
            assert produced.returncode == 0, produced.stderr
        finally:
            assert broker.stop() == 0

    async def lower_epoch() -> None:
        store = await SqliteStore.open(path, SystemClock())
        topic = layout.read_image(await store.range("")).topics["orders"]
        key = partition_key(topic.id, 0)
        older = replace(topic.partitions[0], leader_epoch=LeaderEpoch(0))
        await store.commit([Put(key, layout.encode(key, older))])
        await store.close()

    asyncio.run(lower_epoch())
    refused = serve(tmp_path / "data", "--store", f"sqlite:{path}")
    assert refused.returncode == 2
    assert "restored from an older copy: orders-0 is at leader epoch 0" in refused.stderr


def program(folder: Path, version: str) -> str:
    file = folder / "etcd"
    file.write_text(f"#!/bin/sh\necho '{version}'\n")
    file.chmod(0o755)
    return str(file)


def test_a_program_or_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    new, taken = tmp_path / "new", tmp_path / "taken"
    taken.mkdir()
    (taken / "meta.properties").touch()
    for version, data, reason in (
        ("", new, "is not there: install etcd"),
        ("another 1.0", new, "is not etcd"),
        ("etcd Version: 3.5.1", new, "is 3.5.1, which can corrupt its data"),
        ("etcd Version: 3.6.6", taken, "was not made by etcd"),
        ("etcd Version: 3.6.6", taken / "meta.properties" / "below", "Not a directory"),
    ):
        etcd = program(tmp_path, version) if version else str(tmp_path / "missing")
        refused = run_ottla(
            *("store", "serve", "--name", "a", "--members", "a=127.0.0.1"),
            *("--etcd", etcd, "--data", str(data)),
        )
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr
    assert not new.exists()
    assert os.listdir(taken) == ["meta.properties"]
