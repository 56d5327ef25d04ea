"""Damage to the files of a stopped replica: found after its start, and repaired from its peers."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cli.processes import wait_until
from crash.load import Load, Partition, check_promises, promises_of, read_all
from crash.processes import BrokerProcess, broker_process, free_port
from crash.topics import PATIENCE_S, admin_of
from ottla.records.batch import batches

_DAMAGES: Final = int(os.environ.get("OTTLA_REPLICA_DAMAGES", "12"))
_PER_START: Final = 6  # damages to one stopped replica
_BROKERS: Final = range(3)
_TOPIC: Final = "orders"
_PARTITIONS: Final[list[Partition]] = [(_TOPIC, index) for index in range(3)]
_EPOCH_BYTES: Final = range(12, 16)  # of a batch: neither a CRC nor a reader depends on them
_SETTINGS: Final = (
    "--set=broker.session.timeout.ms=30000",  # no broker is to be missed because it is slow
    "--set=log.scrub.max.bytes.per.second=1000000000",
)


@contextmanager
def cluster(directory: Path, *settings: str) -> Iterator[tuple[list[BrokerProcess], list[str]]]:
    """Three brokers, and the addresses of their metrics."""
    store = f"--store=sqlite:{directory / 'cluster.sqlite'}"
    pages = [f"127.0.0.1:{free_port()}" for _ in _BROKERS]
    with ExitStack() as stack:
        yield (
            [
                stack.enter_context(
                    broker_process(
                        directory / f"broker{number}",
                        *(f"--node-id={number}", store, f"--metrics={page}", *_SETTINGS, *settings),
                    )
                )
                for number, page in enumerate(pages)
            ],
            pages,
        )


def metric(page: str, name: str) -> float:
    with urlopen(f"http://{page}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def is_repaired(page: str) -> bool:
    is_read = metric(page, "ottla_scrub_rounds_total") >= 1
    return is_read and metric(page, "ottla_log_damaged_ranges") == 0


def isr_sizes(admin: AdminClient) -> set[int]:
    topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
    return {len(one.isrs) for one in topic.partitions.values()}


def logs_of(broker: BrokerProcess) -> dict[Path, bytes]:
    files = broker.data.glob(f"{_TOPIC}-*/*.log")
    return {file.relative_to(broker.data): file.read_bytes() for file in files}


def records_of(logs: dict[Path, bytes]) -> dict[str, bytes]:
    """The batches of each partition, whatever segments they are in."""
    found: dict[str, bytes] = {}
    for path in sorted(logs):
        found[path.parent.name] = found.get(path.parent.name, b"") + logs[path]
    return found


def flip(file: Path, rng: Random) -> None:
    """Flip a bit of a segment, in any byte but those of a batch's leader epoch."""
    content = bytearray(file.read_bytes())
    exempt, start = set[int](), 0
    for _, batch in batches(bytes(content)):
        exempt.update(start + at for at in _EPOCH_BYTES)
        start += len(batch)
    at = rng.choice([one for one in range(len(content)) if one not in exempt])
    content[at] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(file: Path, rng: Random) -> None:
    with file.open("r+b") as opened:
        opened.truncate(rng.randrange(file.stat().st_size))


def strike(data: Path, rng: Random) -> str:
    """Damage something in a directory; returns what was done."""
    segments = [one for one in data.glob(f"{_TOPIC}-*/*.log") if one.stat().st_size]
    kind = rng.choices(["flip", "cut", "remove", "metadata"], [5, 2, 2, 2])[0]
    if not segments or kind == "metadata":
        # Not the seals: without one, nothing tells of a log's first segment that it was there.
        wanted = ("*.index", "*.timeindex", "*.snapshot", "partition.metadata")
        found = [one for name in wanted for one in data.glob(f"{_TOPIC}-*/{name}")]
        found += [data / name for name in ("log-states", "recovery-point-offset-checkpoint")]
        rng.choice(sorted(one for one in found if one.exists())).unlink()
        return "metadata"
    file = rng.choice(sorted(segments))
    if kind == "remove":
        file.unlink()
    else:
        (flip if kind == "flip" else cut)(file, rng)
    return kind


def begin(admin: AdminClient, bootstrap: str) -> Load:
    """The topic, with records in several segments of each partition."""
    wanted = NewTopic(_TOPIC, 3, 3, config={"segment.bytes": "65536"})
    admin.create_topics([wanted])[_TOPIC].result(PATIENCE_S)
    load = Load(bootstrap, "one", _PARTITIONS, is_idempotent=True)
    load.start()
    load.wait_acked(3000)
    load.stop()
    return load


@pytest.mark.slow
def test_a_leader_that_finds_damage_gives_way_and_is_repaired(tmp_path: Path, rng: Random) -> None:
    with cluster(tmp_path, "--set=log.scrub.interval.ms=200") as (brokers, pages):
        bootstrap = ",".join(broker.address for broker in brokers)
        admin = admin_of(bootstrap)
        load = begin(admin, bootstrap)

        def leader() -> int:
            topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
            return int(topic.partitions[0].leader)

        damaged = leader()
        flip(min(brokers[damaged].data.glob(f"{_TOPIC}-0/*.log")), rng)
        wait_until(lambda: leader() != damaged, "another leads")
        repaired = partial(metric, pages[damaged], "ottla_replica_repairs_total")
        wait_until(lambda: repaired() == 1, "the damage is cut off")
        wait_until(lambda: isr_sizes(admin) == {3}, "every replica is in sync")
        assert metric(pages[damaged], "ottla_log_damaged_ranges") == 0
        check_promises(read_all(bootstrap, _PARTITIONS), promises_of([load]))
        for broker in brokers:
            assert broker.stop() == 0
        found = [records_of(logs_of(broker)) for broker in brokers]
        assert found[0] == found[1] == found[2] != {}
        assert list(brokers[damaged].data.glob(f"{_TOPIC}-0/*.stray")), "kept"


@pytest.mark.slow
def test_a_damaged_replica_is_found_out_and_made_whole_by_its_peers(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    with cluster(tmp_path) as (brokers, pages):
        bootstrap = ",".join(broker.address for broker in brokers)
        admin = admin_of(bootstrap)
        load = begin(admin, bootstrap)
        done = Counter[str]()
        for start in range(0, _DAMAGES, _PER_START):
            number = rng.choice(_BROKERS)
            victim, page = brokers[number], pages[number]
            if start // _PER_START % 2:
                victim.kill()
            else:
                assert victim.stop() == 0
            done.update(strike(victim.data, rng) for _ in range(min(_PER_START, _DAMAGES - start)))
            victim.start()
            wait_until(partial(is_repaired, page), "all is read again, and nothing is damaged")
            wait_until(lambda: isr_sizes(admin) == {3}, "every replica is in sync")
            done["repaired"] += int(metric(page, "ottla_replica_repairs_total"))
        lost, page = brokers[0], pages[0]
        assert lost.stop() == 0
        shutil.rmtree(lost.data)
        lost.start()
        wait_until(lambda: isr_sizes(admin) == {3}, "every replica is in sync")
        assert check_promises(read_all(bootstrap, _PARTITIONS), promises_of([load])) >= 3000
        for broker in brokers:
            assert broker.stop() == 0
        found = [records_of(logs_of(broker)) for broker in brokers]
        assert found[0] == found[1] == found[2] != {}
    report(f"{_DAMAGES} damages to a stopped replica, and an emptied disk: {dict(done)}")
