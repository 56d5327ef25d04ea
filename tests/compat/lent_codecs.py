"""kafka-python takes snappy, lz4 and zstd from packages that nothing else here needs.

cramjam does the same work and is here already: it is lent to kafka-python where its own package
is missing. Only the compression is ours; framing and everything else stay kafka-python's.
"""

import io
from typing import Any

import cramjam
import kafka.codec
import kafka.record.default_records as default_records


class _Snappy:
    @staticmethod
    def compress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(data))

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(data))


class _Zstd:
    class ZstdCompressor:
        def compress(self, data: bytes) -> bytes:
            return bytes(cramjam.zstd.compress(data))

    class ZstdDecompressor:
        def stream_reader(self, stream: io.BytesIO, *, read_across_frames: bool) -> io.BytesIO:
            assert read_across_frames
            return io.BytesIO(bytes(cramjam.zstd.decompress(stream.read())))


def _lz4_encode(data: Any) -> bytes:
    return bytes(cramjam.lz4.compress(bytes(data)))


def _lz4_decode(data: bytes) -> bytes:
    return bytes(cramjam.lz4.decompress(data))


def lend_codecs() -> None:
    """Fill in what kafka-python did not find when it was imported."""
    if kafka.codec.snappy is None:
        kafka.codec.snappy = _Snappy
    if kafka.codec.zstd is None:
        kafka.codec.zstd = _Zstd
    if not kafka.codec.has_lz4():
        kafka.codec.lz4 = kafka.codec
        for module in (kafka.codec, default_records):
            module.lz4_encode, module.lz4_decode = _lz4_encode, _lz4_decode
