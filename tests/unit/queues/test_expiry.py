"""Records that are delivered for a while only."""

import pytest

from ottla.model import TimestampMs
from ottla.queues.expiry import TTL, TTL_BYTES, Expiries, expiry_ms
from ottla.records.batch import Record, batches, build_batch
from ottla.records.compression import Codec

BYTES_MAX = 1 << 20


def times(data: bytes, expiries: Expiries | None = None) -> dict[int, int]:
    ((header, view),) = batches(data)
    found = (expiries or Expiries()).of(header, view, BYTES_MAX, has_ttl=TTL_BYTES in data)
    return dict(found)


def record(ttl: bytes | None, timestamp_ms: int = 1000) -> Record:
    headers = () if ttl is None else ((TTL, ttl),)
    return Record(timestamp_ms=TimestampMs(timestamp_ms), value=b"v" * 50, headers=headers)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_expires_after_its_timestamp_in_every_codec(codec: Codec) -> None:
    data = bytes(build_batch([record(b"5"), record(None), record(b"0", 2000)], codec=codec))
    assert times(data) == {0: 1005, 2: 2000}


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"soon", b"9" * 19, "²".encode(), None])
def test_what_is_not_a_number_says_nothing(value: bytes | None) -> None:
    assert expiry_ms(1000, ((TTL, value),)) is None


def test_the_last_of_several_counts() -> None:
    assert expiry_ms(1, ((TTL, b"5"), ("other", b"9"), (TTL, b"7"))) == 8


def test_a_compressed_batch_is_opened_once() -> None:
    data = bytearray(build_batch([record(b"5")], codec=Codec.ZSTD))
    expiries = Expiries()
    assert times(bytes(data), expiries) == {0: 1005}
    data[-3:] = b"xxx"  # the header, and so its CRC, is the same
    assert times(bytes(data), expiries) == {0: 1005}
    assert times(bytes(data)) == {}, "what cannot be read has no times"


def test_few_batches_are_remembered() -> None:
    expiries = Expiries()
    for number in range(200):
        times(bytes(build_batch([record(b"5", number)], codec=Codec.GZIP)), expiries)
    assert len(expiries._known) == 64
