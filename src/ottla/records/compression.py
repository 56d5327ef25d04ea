"""The four compression codecs of record batches, with output bounded by the caller.

A few kilobytes can claim to be gigabytes, so sizes stated in a stream are not used for allocation:
output goes into an anonymous mapping of the allowed size, of which only written pages take up
memory, and a stream that needs more is refused where it overflows.
"""

import mmap
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, assert_never

import cramjam

from ottla.errors import InvalidRecord, MessageTooLarge

Buffer = bytes | bytearray | memoryview

# The framing that Java producers put around snappy blocks: magic, version 1, compatible with 1.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10

# An LZ4 frame with independent blocks of up to 64 KiB and no checksums, as the batch has its
# own; Java consumers refuse linked blocks. The last byte is the descriptor's own checksum.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31  # in a block's size: the block is not compressed
_LZ4_END: Final = bytes(4)

_OVERFLOWED: Final = "failed to write whole buffer"


class Codec(IntEnum):
    """How a batch's records are compressed: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> "Codec":
        """The codec that a `compression.type` setting names."""
        return cls.NONE if name == "uncompressed" else cls[name.upper()]


def compress(data: Buffer, codec: Codec, level: int | None = None) -> Buffer:
    """`data` compressed with `codec`, in the framing that every Kafka client reads.

    `level` is one of gzip or zstd; None is the codec's own default, and others have only that.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level))
        case _ as never:
            assert_never(never)


def decompress(data: Buffer, codec: Codec, *, bytes_max: int) -> Buffer:
    """The inverse of `compress`; `MessageTooLarge` for more than `bytes_max` bytes of output."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _decompress_stream(cramjam.gzip.decompress_into, data, bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(data, bytes_max)
        case Codec.LZ4:
            return _decompress_stream(cramjam.lz4.decompress_into, data, bytes_max)
        case Codec.ZSTD:
            return _decompress_stream(cramjam.zstd.decompress_into, data, bytes_max)
        case _ as never:
            assert_never(never)


def decompress_into(data: Buffer, codec: Codec, out: memoryview) -> int:
    """Decompress into `out` from its start; return the size, or raise `MessageTooLarge`.

    For readers of many batches: pages that have been written once are written faster.
    """
    match codec:
        case Codec.NONE:
            if len(data) > len(out):
                raise _too_large(len(out))
            out[: len(data)] = data
            return len(data)
        case Codec.GZIP:
            return _stream_into(cramjam.gzip.decompress_into, data, out)
        case Codec.SNAPPY:
            plain = _decompress_snappy(data, len(out))
            out[: len(plain)] = plain
            return len(plain)
        case Codec.LZ4:
            return _stream_into(cramjam.lz4.decompress_into, data, out)
        case Codec.ZSTD:
            return _stream_into(cramjam.zstd.decompress_into, data, out)
        case _ as never:
            assert_never(never)


def _compress_xerial(data: Buffer) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += struct.pack(">i", len(block))
        out += block
    return bytes(out)


def _compress_lz4(data: Buffer) -> bytes:
    out = bytearray(_LZ4_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += struct.pack("<I", len(block))
            out += block
        else:
            out += struct.pack("<I", len(plain) | _LZ4_STORED)
            out += plain
    return bytes(out + _LZ4_END)


def _decompress_stream(
    stream_into: Callable[[Buffer, memoryview], int], data: Buffer, bytes_max: int
) -> Buffer:
    buffer = memoryview(mmap.mmap(-1, bytes_max + 1))
    size_bytes = _stream_into(stream_into, data, buffer)
    if size_bytes > bytes_max:
        raise _too_large(bytes_max)
    return buffer[:size_bytes]


def _stream_into(
    stream_into: Callable[[Buffer, memoryview], int], data: Buffer, out: memoryview
) -> int:
    try:
        return stream_into(data, out)
    except cramjam.DecompressionError as problem:
        if _OVERFLOWED in str(problem):
            raise _too_large(len(out)) from None
        raise InvalidRecord(f"the batch cannot be decompressed: {problem}") from None


def _decompress_snappy(data: Buffer, bytes_max: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_block(view, bytes_max)
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise InvalidRecord("the snappy stream ends inside a block's size")
        (size_bytes,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 < size_bytes <= len(view) - position:
            raise InvalidRecord(f"a snappy block of {size_bytes} bytes does not fit its stream")
        out += _decompress_block(view[position : position + size_bytes], bytes_max - len(out))
        position += size_bytes
    return out


def _decompress_block(block: memoryview, bytes_max: int) -> Buffer:
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
        if size_bytes > bytes_max:
            raise _too_large(bytes_max)
        if not size_bytes:
            return b""
        buffer = mmap.mmap(-1, size_bytes)
        written_bytes = cramjam.snappy.decompress_raw_into(block, buffer)
    except cramjam.DecompressionError as problem:
        raise InvalidRecord(f"the batch cannot be decompressed: {problem}") from None
    return memoryview(buffer)[:written_bytes]


def _too_large(bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(f"the batch grows beyond {bytes_max} bytes when decompressed")
