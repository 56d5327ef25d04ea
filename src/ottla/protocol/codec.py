"""Encodes and decodes messages with functions compiled per message version.

When a version of a message is first used, `decoder` or `encoder` generates the Python source of a
function from its class (see `schema`) and compiles it; from then on no schema is interpreted. The
generated code is fast because adjacent fields of fixed size, together with the length that follows
them, are one `struct` call, and nested structs are inlined instead of called. `decoder_source` and
`encoder_source` return that code; tracebacks show its lines.

Decoders trust no input. An array may announce no more elements than the remaining bytes could hold,
and a message no more than the caller allows, so memory and time are bounded. Bytes after a message
are ignored, because librdkafka sends some. Malformed input raises `ProtocolViolation`.

Large messages are decoded and encoded in slices: the same functions as generators, which the caller
suspends and resumes, so that other connections are served in between.

Encoders trust the caller: a number out of range or a null where the version has none is our own
mistake and raises a Python error. A field that a version does not have is left out silently, even
if it is set; a tagged field is left out while it has its default.
"""

import struct
from collections.abc import Generator
from typing import Final, TypeVar

from ottla.errors import ProtocolViolation, TooManyElements
from ottla.protocol.codegen import Function, Layout
from ottla.protocol.decoder import DecoderGenerator
from ottla.protocol.encoder import EncoderGenerator
from ottla.protocol.primitives import Buffer

M = TypeVar("M")
Steps = Generator[int, None, M]  # yields the number of elements done since its last yield

UNLIMITED: Final = 2**31


def decode(
    message_class: type[M],
    version: int,
    buffer: Buffer,
    position: int = 0,
    *,
    elements_max: int = UNLIMITED,
) -> M:
    """Decode the message that starts at `position`; bytes after it are ignored.

    Views in the result (fields of kind `records`) share the buffer's memory.
    """
    try:
        decoded: M = _DECODERS[message_class, version](buffer, position, elements_max)
    except _UNREADABLE as problem:
        raise _violation(message_class, version, problem, elements_max) from None
    return decoded


def decode_in_slices(
    message_class: type[M], version: int, buffer: Buffer, position: int, *, elements_max: int
) -> Steps[M]:
    """Like `decode`, in steps, for a large message."""
    try:
        run = _SLICED_DECODERS[message_class, version]
        decoded: M = yield from run(buffer, position, elements_max)
    except _UNREADABLE as problem:
        raise _violation(message_class, version, problem, elements_max) from None
    return decoded


def encode(message: object, version: int) -> bytes:
    """The bytes of a message in one of its versions, without a header."""
    out = bytearray()
    _ENCODERS[type(message), version](out, message)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int) -> None:
    """Append the bytes of a message, for example behind a header."""
    _ENCODERS[type(message), version](out, message)


def encode_in_slices(out: bytearray, message: object, version: int) -> Steps[None]:
    """Like `encode_into`, in steps, for a large message."""
    yield from _SLICED_ENCODERS[type(message), version](out, message)


def decoder_source(message_class: type, version: int) -> str:
    """The source of the function that decodes one version, for debugging."""
    return str(DecoderGenerator(Layout(message_class, version)).generate())


def encoder_source(message_class: type, version: int) -> str:
    """The source of the function that encodes one version, for debugging."""
    return str(EncoderGenerator(Layout(message_class, version)).generate())


class _Functions(dict[tuple[type, int], Function]):
    """Functions by (message class, version), compiled on first use."""

    def __init__(
        self, generator: type[DecoderGenerator | EncoderGenerator], *, in_slices: bool = False
    ) -> None:
        super().__init__()
        self._generator = generator
        self._in_slices = in_slices

    def __missing__(self, key: tuple[type, int]) -> Function:
        layout = Layout(*key)
        title = f"{self._generator.__name__} of {layout}{' in slices' * self._in_slices}"
        source = self._generator(layout, in_slices=self._in_slices).generate()
        function = self[key] = source.compile(title)
        return function


def _violation(
    message_class: type, version: int, problem: Exception, elements_max: int
) -> ProtocolViolation:
    what = f"{message_class.__name__} v{version}"
    match problem:
        case TooManyElements():
            return TooManyElements(f"{what}: more than {elements_max} elements")
        case ProtocolViolation():
            return ProtocolViolation(f"{what}: {problem}")
        case UnicodeDecodeError():
            return ProtocolViolation(f"{what}: a string is not UTF-8")
        case _:
            return ProtocolViolation(f"{what}: the bytes end inside the message")


_UNREADABLE: Final = (ProtocolViolation, struct.error, IndexError, UnicodeDecodeError)
_DECODERS: Final = _Functions(DecoderGenerator)
_ENCODERS: Final = _Functions(EncoderGenerator)
_SLICED_DECODERS: Final = _Functions(DecoderGenerator, in_slices=True)
_SLICED_ENCODERS: Final = _Functions(EncoderGenerator, in_slices=True)
