"""Messages to bytes and back, by functions written for one message in one version.

The first time a version of a message is met, `decoder` or `encoder` writes the Python source of a
function for it from the class (see `schema`), and it is compiled; from then on nothing interprets
a schema. What makes that code fast: neighbouring fields of fixed size, together with the length
that follows them, are one `struct` call, and nested structs are inlined instead of called.
`decoder_source` and `encoder_source` show it; tracebacks show its lines.

Decoders trust nothing. An array may announce no more elements than the remaining bytes could hold,
and a message have no more than the caller allows, so memory and time stay within bounds. Bytes
behind a message are ignored, because librdkafka sends some. Everything wrong is a
`ProtocolViolation`.

Large messages are read and written in slices: the same functions as generators, which the caller
can leave and come back to, so that others get their turn.

Encoders trust the caller: a number out of range or a null where the version has none is our own
mistake and raises whatever Python raises. A field that a version does not have is left out without
a word, also when it holds a value; a tagged field is left out while it holds its default.
"""

import struct
from collections.abc import Generator
from typing import Final, TypeVar

from ottla.errors import ProtocolViolation, TooManyElements
from ottla.protocol.codegen import Function, Layout
from ottla.protocol.decoder import DecoderWriter
from ottla.protocol.encoder import EncoderWriter
from ottla.protocol.primitives import Buffer

M = TypeVar("M")
Steps = Generator[int, None, M]  # yields how many elements were done since it last did

UNLIMITED: Final = 2**31


def decode(
    message_class: type[M],
    version: int,
    buffer: Buffer,
    position: int = 0,
    *,
    elements_max: int = UNLIMITED,
) -> M:
    """Read the message that starts at `position`; what follows it in the buffer is ignored.

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
    """The same for a large message, in steps."""
    try:
        run = _SLICED_DECODERS[message_class, version]
        decoded: M = yield from run(buffer, position, elements_max)
    except _UNREADABLE as problem:
        raise _violation(message_class, version, problem, elements_max) from None
    return decoded


def encode(message: object, version: int) -> bytes:
    """The bytes of a message in one of its versions, without any header."""
    out = bytearray()
    _ENCODERS[type(message), version](out, message)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int) -> None:
    """Append the bytes of a message, for example behind a header."""
    _ENCODERS[type(message), version](out, message)


def encode_in_slices(out: bytearray, message: object, version: int) -> Steps[None]:
    """The same for a large message, in steps."""
    yield from _SLICED_ENCODERS[type(message), version](out, message)


def decoder_source(message_class: type, version: int) -> str:
    """The function that reads one version, for people who want to see it."""
    return str(DecoderWriter(Layout(message_class, version)).write())


def encoder_source(message_class: type, version: int) -> str:
    """The function that writes one version, for people who want to see it."""
    return str(EncoderWriter(Layout(message_class, version)).write())


class _Functions(dict[tuple[type, int], Function]):
    """Functions by (message class, version), compiled when first asked for."""

    def __init__(
        self, writer: type[DecoderWriter | EncoderWriter], *, in_slices: bool = False
    ) -> None:
        super().__init__()
        self._writer = writer
        self._in_slices = in_slices

    def __missing__(self, key: tuple[type, int]) -> Function:
        layout = Layout(*key)
        title = f"{self._writer.__name__} of {layout}{' in slices' * self._in_slices}"
        source = self._writer(layout, in_slices=self._in_slices).write()
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
_DECODERS: Final = _Functions(DecoderWriter)
_ENCODERS: Final = _Functions(EncoderWriter)
_SLICED_DECODERS: Final = _Functions(DecoderWriter, in_slices=True)
_SLICED_ENCODERS: Final = _Functions(EncoderWriter, in_slices=True)
