"""A running broker removes what was deleted, says so to the store, and sets aside what was lost."""

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from crash.damaged import options
from ottla.broker.app import Broker
from ottla.broker.environment import Environment
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.group_offsets import commit_offsets
from ottla.client.producer import IdempotentProducer
from ottla.cluster.store import Delete
from ottla.cluster.values import topic_key
from ottla.model import Offset, TopicPartition
from ottla.records.batch import Record
from ottla.records.crc import crc32c

PATIENCE_S = 60
ORDERS = TopicPartition("orders", 0)


def serving(data: Path, work: Callable[[Broker, Client], Awaitable[None]]) -> None:
    """Run a broker in this process for as long as `work` takes."""

    async def scenario() -> None:
        broker = await Broker.start(options(data), Environment())
        try:
            async with asyncio.timeout(PATIENCE_S), Client([broker.address]) as client:
                await work(broker, client)
        finally:
            await broker.stop()

    asyncio.run(scenario())


async def write_orders(client: Client) -> None:
    await admin.create_topic(client, "orders", partitions=1, settings={})
    producer = await IdempotentProducer.open(client)
    await producer.write(ORDERS, [Record(value=b"one")])


def test_a_tombstone_is_gone_once_the_logs_are(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client) -> None:
        await write_orders(client)
        await admin.delete_topic(client, "orders")
        assert not (tmp_path / "orders-0").exists()
        while broker._state.image.tombstones:
            await broker._state.next_image()

    serving(tmp_path, work)
    serving(tmp_path, _expect_no_strays)


async def _expect_no_strays(broker: Broker, client: Client) -> None:
    assert broker._replicas.stray_count == 0
    assert not broker._state.image.tombstones


def test_a_kill_between_deleting_a_topic_and_removing_its_logs_is_made_good(
    tmp_path: Path,
) -> None:
    """The store of after the deletion, and the disk of before it."""
    data, after = tmp_path / "data", tmp_path / "after"

    async def fill(broker: Broker, client: Client) -> None:
        await write_orders(client)
        shutil.copytree(data / "orders-0", tmp_path / "orders-0")
        await admin.delete_topic(client, "orders")
        shutil.copytree(data, after)  # the tombstone is reported later

    serving(data, fill)
    shutil.copytree(tmp_path / "orders-0", after / "orders-0")

    async def look(broker: Broker, client: Client) -> None:
        assert not (after / "orders-0").exists()
        while broker._state.image.tombstones:
            await broker._state.next_image()

    serving(after, look)
    serving(after, _expect_no_strays)


def test_a_topic_that_the_store_loses_while_it_runs_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker, client: Client) -> None:
        await write_orders(client)
        revision = await broker._store.commit([Delete(topic_key("orders"))])
        await broker._state._reach(revision)
        await broker._replicas.wait_applied(revision)
        assert broker._replicas.stray_count == 1

    with caplog.at_level(logging.ERROR, "ottla"):
        serving(tmp_path, work)
    stray = tmp_path / f"orders-0.{0:032x}-stray"
    assert (stray / f"{0:020d}.log").stat().st_size > 0
    (said,) = [line for line in caplog.records if line.getMessage() == "log set aside"]
    assert "the store has lost the topic" in vars(said)["reason"]


@pytest.mark.parametrize("is_known", [True, False], ids=["known end", "no checkpoint"])
def test_a_log_that_is_gone_is_named(
    is_known: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker, client: Client) -> None:
        await write_orders(client)

    async def look(broker: Broker, client: Client) -> None:
        log = broker._replicas.find(ORDERS).log
        assert (log.start_offset, log.end_offset) == (0, 1 if is_known else 0)
        assert broker._replicas.chores.damaged_range_count == (1 if is_known else 0)

    serving(tmp_path, work)
    shutil.rmtree(tmp_path / "orders-0")
    if not is_known:
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
    with caplog.at_level(logging.ERROR, "ottla"):
        serving(tmp_path, look)
    said = {line.getMessage(): vars(line)["tp"] for line in caplog.records}
    missing = "log missing, and with it the checkpoint of its end"
    lost = dict.fromkeys(["log directory missing", "log damaged"], str(ORDERS))
    assert said == (lost if is_known else {missing: str(ORDERS)})


def test_a_groups_topic_that_is_lost_serves_again_when_its_records_are_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until an operator decides: groups that have lost their offsets must not begin anew unseen."""

    async def commit(broker: Broker, client: Client) -> None:
        await write_orders(client)
        await commit_offsets(client, "readers", {ORDERS: Offset(1)})

    async def look(broker: Broker, client: Client) -> None:
        while not _reasons(caplog, "shard load failed"):  # noqa: ASYNC110  # logs have no event
            await asyncio.sleep(0.01)
        assert "is damaged on this broker's disk" in _reasons(caplog, "shard load failed")[0]

    async def commit_again(broker: Broker, client: Client) -> None:
        await commit_offsets(client, "readers", {ORDERS: Offset(1)})

    serving(tmp_path, commit)
    shutil.rmtree(tmp_path / "__consumer_offsets-0")
    serving(tmp_path, look)
    (tmp_path / "__consumer_offsets-0" / "corrupt-ranges").unlink()
    serving(tmp_path, commit_again)


def _reasons(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    return [str(vars(line)["reason"]) for line in caplog.records if line.getMessage() == message]


def test_a_name_can_be_used_again_at_once(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client) -> None:
        for _ in range(3):
            await write_orders(client)
            await admin.delete_topic(client, "orders")
        await write_orders(client)

    serving(tmp_path, work)

    async def look(broker: Broker, client: Client) -> None:
        await _expect_known(broker)
        assert broker._replicas.leaders[ORDERS].log.end_offset == 1

    serving(tmp_path, look)


async def _expect_known(broker: Broker) -> None:
    assert broker._replicas.stray_count == 0


@pytest.mark.parametrize("format_", [1, 2])
def test_a_directory_of_an_older_ottla_opens_and_is_brought_up_to_date(
    tmp_path: Path, format_: int
) -> None:
    """Format 1 is from before there were checksums, format 2 from before partitions had keys."""
    serving(tmp_path, lambda broker, client: write_orders(client))
    _age_store(tmp_path, format_)
    if format_ == 1:
        _age_files(tmp_path)

    async def look(broker: Broker, client: Client) -> None:
        assert broker._replicas.leaders[ORDERS].log.end_offset == 1
        assert broker._replicas.stray_count == 0

    serving(tmp_path, look)
    assert b"crc32c" in (tmp_path / "meta.properties").read_bytes()
    assert b"crc32c" in (tmp_path / "orders-0" / "partition.metadata").read_bytes()
    serving(tmp_path, look)


def _age_files(data: Path) -> None:
    metadata = data / "orders-0" / "partition.metadata"
    metadata.write_text("".join(metadata.read_text().splitlines(keepends=True)[:2]))
    identity = data / "meta.properties"
    identity.write_text("".join(identity.read_text().splitlines(keepends=True)[:3]))


def _age_store(data: Path, format_: int) -> None:
    """Rewrite the store as older versions wrote it: topics with their partitions in them."""
    store = sqlite3.connect(data / "cluster.sqlite")
    rows = dict(store.execute("SELECT key, value FROM entries").fetchall())
    values = {key: json.loads(value) for key, value in rows.items()}
    for key, fields in values.items():
        fields["format"] = format_
        del fields["crc32c"]
        if key.startswith("topics/"):
            names = (f"partitions/{fields['id']}/{index}" for index in range(fields["partitions"]))
            fields["partitions"] = [_without_format(values[name]) for name in names]
    for key, fields in values.items():
        if key.startswith(("partitions/", "members/")):
            for table in ("entries", "history"):
                store.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
            continue
        old = json.dumps(fields, separators=(",", ":")).encode()
        if format_ == 2:
            old = old[:-1] + b',"crc32c":"%08x"}' % crc32c(key.encode() + b"\n" + old)
        for table in ("entries", "history"):
            store.execute(
                f"UPDATE {table} SET value = ? WHERE key = ? AND value IS NOT NULL",
                (old, key),
            )
    store.commit()
    store.close()


def _without_format(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {"leader", "leader_epoch", "replicas", "isr", "partition_epoch"}
    return {name: value for name, value in fields.items() if name in kept}
