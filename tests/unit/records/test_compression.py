"""Codecs: what others wrote is read, what lies about its size is refused cheaply."""

import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import cramjam
import pytest

from ottla.errors import InvalidRecord, MessageTooLarge
from ottla.records.compression import Buffer, Codec, compress, decompress, decompress_into

LIMIT = 8 << 20
PLAIN = b"some records, " * 5000
ZEROS_BYTES = 64 << 20

# A process of its own, because the peak of one that has made a bomb says nothing.
MEASURE = """
import resource, sys
from ottla.errors import MessageTooLarge
from ottla.records.compression import Codec, decompress

peak_kib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bomb = sys.stdin.buffer.read()
decompress(bytes([1, 0, 120]), Codec.SNAPPY, bytes_max=100)
before_kib = peak_kib()
try:
    decompress(bomb, Codec(int(sys.argv[1])), bytes_max=int(sys.argv[2]))
except MessageTooLarge:
    print((peak_kib() - before_kib) * 1024)
"""


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, bytes(range(256)) * 1000])
def test_what_was_compressed_is_read_again(codec: Codec, plain: bytes) -> None:
    assert bytes(decompress(compress(plain, codec), codec, bytes_max=LIMIT)) == plain


def test_settings_name_codecs() -> None:
    assert Codec.named("uncompressed") is Codec.NONE
    assert [Codec.named(name) for name in ("gzip", "snappy", "lz4", "zstd")] == list(Codec)[1:]


def test_lz4_frames_have_independent_blocks_for_java_consumers() -> None:
    frame = compress(PLAIN, Codec.LZ4)
    assert frame[4] & 0x20, "the block independence flag"


def test_lz4_frames_of_other_writers_are_read() -> None:
    linked = bytes(cramjam.lz4.compress(PLAIN))
    assert not linked[4] & 0x20
    assert bytes(decompress(linked, Codec.LZ4, bytes_max=LIMIT)) == PLAIN


def test_snappy_is_written_in_java_framing_and_read_raw_too() -> None:
    assert bytes(compress(PLAIN, Codec.SNAPPY))[:8] == b"\x82SNAPPY\x00"
    raw = bytes(cramjam.snappy.compress_raw(PLAIN))
    assert bytes(decompress(raw, Codec.SNAPPY, bytes_max=LIMIT)) == PLAIN


def test_gzip_members_one_after_the_other_are_one_stream() -> None:
    members = gzip.compress(b"a" * 100) + gzip.compress(b"b" * 100)
    assert bytes(decompress(members, Codec.GZIP, bytes_max=LIMIT)) == b"a" * 100 + b"b" * 100


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_output_may_fill_the_limit_and_not_exceed_it(codec: Codec) -> None:
    squeezed = compress(PLAIN, codec)
    assert len(decompress(squeezed, codec, bytes_max=len(PLAIN))) == len(PLAIN)
    with pytest.raises(MessageTooLarge):
        decompress(squeezed, codec, bytes_max=len(PLAIN) - 1)


@pytest.mark.parametrize(
    ("codec", "make_bomb"),  # made in the test: every worker imports this module
    [
        (Codec.ZSTD, lambda zeros: bytes(cramjam.zstd.compress(zeros))),
        (Codec.GZIP, gzip.compress),
        (Codec.GZIP, lambda zeros: gzip.compress(zeros[: 1 << 20]) * 64),
        (Codec.LZ4, lambda zeros: bytes(cramjam.lz4.compress(zeros))),
        (Codec.SNAPPY, lambda zeros: bytes(cramjam.snappy.compress_raw(zeros))),
        (Codec.SNAPPY, lambda zeros: bytes(compress(zeros, Codec.SNAPPY))),
        (Codec.SNAPPY, lambda _: b"\xff\xff\xff\xff\x0f" + bytes(20)),
    ],
    ids=["zstd", "gzip", "gzip members", "lz4", "snappy raw", "snappy", "snappy claims 4 GiB"],
)
def test_a_bomb_costs_no_more_than_the_limit(
    codec: Codec, make_bomb: Callable[[bytes], bytes]
) -> None:
    bomb = make_bomb(bytes(ZEROS_BYTES))
    with pytest.raises(MessageTooLarge):
        decompress(bomb, codec, bytes_max=LIMIT)
    child = subprocess.run(
        [sys.executable, "-c", MEASURE, str(codec.value), str(LIMIT)],
        input=bomb,
        capture_output=True,
        check=True,
    )
    assert int(child.stdout) < LIMIT + (4 << 20), "bytes that the process grew by"


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.GZIP, b""),
        (Codec.GZIP, b"not gzip at all"),
        (Codec.GZIP, gzip.compress(PLAIN)[:-5]),
        (Codec.LZ4, b"\x04\x22\x4d\x18" + b"\xff" * 20),
        (Codec.LZ4, bytes(compress(PLAIN, Codec.LZ4))[:-9]),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd" + b"\xff" * 20),
        (Codec.ZSTD, bytes(compress(PLAIN, Codec.ZSTD))[:-3]),
        (Codec.SNAPPY, b"\x10garbage"),
        (Codec.SNAPPY, bytes(compress(PLAIN, Codec.SNAPPY))[:-3]),
        (Codec.SNAPPY, bytes(compress(PLAIN, Codec.SNAPPY)) + b"\0\0"),
        (Codec.SNAPPY, bytes(compress(b"", Codec.SNAPPY)) + struct.pack(">i", -1)),
    ],
)
def test_a_stream_that_is_no_stream_is_invalid(codec: Codec, data: Buffer) -> None:
    with pytest.raises(InvalidRecord):
        decompress(data, codec, bytes_max=LIMIT)


def test_an_empty_snappy_stream_is_empty() -> None:
    assert bytes(decompress(compress(b"", Codec.SNAPPY), Codec.SNAPPY, bytes_max=LIMIT)) == b""


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_flipped_bits_never_do_worse_than_a_refusal(codec: Codec) -> None:
    squeezed = bytes(compress(PLAIN[:2000], codec))
    for position in range(0, len(squeezed), max(1, len(squeezed) // 200)):
        damaged = bytearray(squeezed)
        damaged[position] ^= 0xFF
        with suppress(InvalidRecord, MessageTooLarge):
            decompress(damaged, codec, bytes_max=LIMIT)


@pytest.mark.parametrize("codec", Codec)
def test_into_a_buffer_of_the_callers_the_same_is_written_from_its_start(codec: Codec) -> None:
    for plain in (PLAIN, b"x", b""):
        out = bytearray(b"?" * (len(PLAIN) + 1))
        assert decompress_into(compress(plain, codec), codec, memoryview(out)) == len(plain)
        assert out.startswith(plain)
        assert out.endswith(b"?"), "nothing behind is touched"


@pytest.mark.parametrize("codec", Codec)
def test_a_buffer_may_be_filled_and_not_overrun(codec: Codec) -> None:
    squeezed = compress(PLAIN, codec)
    exact = bytearray(len(PLAIN))
    assert decompress_into(squeezed, codec, memoryview(exact)) == len(PLAIN)
    assert exact == PLAIN
    for room in (len(PLAIN) - 1, 0):
        with pytest.raises(MessageTooLarge, match="grows beyond"):
            decompress_into(squeezed, codec, memoryview(bytearray(room)))


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_garbage_for_a_buffer_is_invalid(codec: Codec) -> None:
    with pytest.raises(InvalidRecord):
        decompress_into(b"\xff" * 50, codec, memoryview(bytearray(1000)))


def test_a_snappy_block_of_nothing_is_empty() -> None:
    nothing = bytes(cramjam.snappy.compress_raw(b""))
    assert bytes(decompress(nothing, Codec.SNAPPY, bytes_max=0)) == b""
    framed = compress(b"some", Codec.SNAPPY)
    framed = bytes(framed) + struct.pack(">i", len(nothing)) + nothing
    assert bytes(decompress(framed, Codec.SNAPPY, bytes_max=4)) == b"some"
