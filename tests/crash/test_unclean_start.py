"""A log that was not closed cleanly: opened to its last batch, and how long that takes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from crash.load import PATIENCE_S, SILENT
from crash.processes import broker_process
from crash.topics import admin_of, create_topics
from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import Record, build_batch, stamp

_LOG_BYTES: Final = int(os.environ.get("OTTLA_UNCLEAN_MIB", "64")) << 20
_SEGMENT_BYTES: Final = _LOG_BYTES // 2  # so that one segment is sealed while it is recovered
_WRITE_BYTES: Final = 8 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "record_bytes", "record_count"),
    [("1 MB", 10_000, 100), ("1 kB", 100, 9), ("200 B", 130, 1)],
)
def test_a_large_log_is_opened_to_its_last_batch(
    tmp_path: Path,
    report: Callable[[str], None],
    kind: str,
    record_bytes: int,
    record_count: int,
) -> None:
    with broker_process(tmp_path / "data") as broker:
        create_topics(admin_of(broker.address), {"large": {"retention.ms": "-1"}})
        broker.kill()
        end = _write_log(tmp_path / "data" / "large-0", record_bytes, record_count)
        began_s = time.monotonic()
        broker.start()
        took_s = time.monotonic() - began_s
        assert _ends(broker.address) == (0, end)
        assert _last_value(broker.address, end) == b"v" * record_bytes
    for segment in (tmp_path / "data" / "large-0").glob("*.log"):
        segment.unlink()  # pytest keeps the directories of the last runs
    report(
        f"unclean start on {_LOG_BYTES >> 20} MiB of {kind} batches ({end} records): {took_s:.1f} s"
    )


def _write_log(directory: Path, record_bytes: int, record_count: int) -> int:
    """Fill a partition as a broker would, with a torn batch at its end; where it must end."""
    letter = Record(timestamp_ms=TimestampMs(1_700_000_000_000), value=b"v" * record_bytes)
    batch = build_batch([letter] * record_count)
    end = 0
    while end * len(batch) < _LOG_BYTES * record_count:
        with (directory / f"{end:020d}.log").open("wb") as file:
            while file.tell() < _SEGMENT_BYTES:
                chunk = bytearray()
                while len(chunk) < _WRITE_BYTES:
                    stamp(batch, Offset(end), LeaderEpoch(0))
                    chunk += batch
                    end += record_count
                file.write(chunk)
    with (directory / max(file.name for file in directory.glob("*.log"))).open("ab") as file:
        file.write(batch[: len(batch) // 2])
    return end


def _consumer(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "check.crcs": True,
            "logger": SILENT,
        }
    )


def _ends(address: str) -> tuple[int, int]:
    consumer = _consumer(address)
    start, end = consumer.get_watermark_offsets(TopicPartition("large", 0), timeout=PATIENCE_S)
    consumer.close()
    return start, end


def _last_value(address: str, end: int) -> bytes:
    consumer = _consumer(address)
    consumer.assign([TopicPartition("large", 0, end - 1)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.offset() == end - 1
    value = message.value()
    assert isinstance(value, bytes)
    return value
