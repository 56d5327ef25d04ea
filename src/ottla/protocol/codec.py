"""Messages to bytes and back, by functions written for one message in one version.

The first time a version of a message is met, `decoder` or `encoder` writes the Python source of a
function for it from the class (see `schema`), and it is compiled; from then on nothing interprets
a schema. What makes that code fast: neighbouring fields of fixed size, together with the length
that follows them, are one `struct` call, and nested structs are inlined instead of called.
`decoder_source` and `encoder_source` show it; tracebacks show its lines.

Decoders trust nothing. An array may announce no more elements than the remaining bytes could hold,
so memory stays within a small multiple of what was sent. Bytes behind a message are ignored,
because librdkafka sends some. Everything wrong is a `ProtocolViolation`.

Encoders trust the caller: a number out of range or a null where the version has none is our own
mistake and raises whatever Python raises. A field that a version does not have is left out without
a word, also when it holds a value; a tagged field is left out while it holds its default.
"""

import struct
from typing import Final, TypeVar

from ottla.errors import ProtocolViolation
from ottla.protocol.decoder import DecoderWriter
from ottla.protocol.encoder import EncoderWriter
from ottla.protocol.primitives import Buffer
from ottla.protocol.source import Function, Layout

M = TypeVar("M")


def decode(message_class: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Read the message that starts at `position`; what follows it in the buffer is ignored.

    Views in the result (fields of kind `records`) share the buffer's memory.
    """
    try:
        decoded: M = _DECODERS[message_class, version](buffer, position)
    except ProtocolViolation as violation:
        raise _violation(message_class, version, str(violation)) from None
    except (struct.error, IndexError):
        raise _violation(message_class, version, "the bytes end inside the message") from None
    except UnicodeDecodeError:
        raise _violation(message_class, version, "a string is not UTF-8") from None
    return decoded


def encode(message: object, version: int) -> bytes:
    """The bytes of a message in one of its versions, without any header."""
    out = bytearray()
    _ENCODERS[type(message), version](out, message)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int) -> None:
    """Append the bytes of a message, for example behind a header."""
    _ENCODERS[type(message), version](out, message)


def decoder_source(message_class: type, version: int) -> str:
    """The function that reads one version, for people who want to see it."""
    return str(DecoderWriter(Layout(message_class, version)).write())


def encoder_source(message_class: type, version: int) -> str:
    """The function that writes one version, for people who want to see it."""
    return str(EncoderWriter(Layout(message_class, version)).write())


class _Functions(dict[tuple[type, int], Function]):
    """Functions by (message class, version), compiled when first asked for."""

    def __init__(self, writer: type[DecoderWriter | EncoderWriter]) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, key: tuple[type, int]) -> Function:
        layout = Layout(*key)
        title = f"{self._writer.__name__} of {layout}"
        function = self[key] = self._writer(layout).write().compile(title)
        return function


def _violation(message_class: type, version: int, problem: str) -> ProtocolViolation:
    return ProtocolViolation(f"{message_class.__name__} v{version}: {problem}")


_DECODERS: Final = _Functions(DecoderWriter)
_ENCODERS: Final = _Functions(EncoderWriter)
