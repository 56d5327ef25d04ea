"""Values of command-line parameters: parsed here and not by Pydantic, which typer uses.

Importing Pydantic takes 0.1 s of CPU, as long as the rest of a short command, and its errors speak
of inputs that should be valid integers (ADR 27).
"""

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import typer

from ottla.errors import did_you_mean

HELP_OPTIONS: Final = ["-h", "--help"]
_KINDS: Final[dict[type, Callable[[Any], Any]]] = {str: str, Path: Path}


class Coercion:
    """Parses the value of one parameter; takes the place of typer's own."""

    def __init__(self, annotation: Any, low: float | None, high: float | None) -> None:
        self._is_list = get_origin(annotation) is list
        self._kind = get_args(annotation)[0] if self._is_list else annotation
        self._low, self._high = low, high

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it; `BadParameter` says what is wrong with it."""
        try:
            if self._is_list:
                return [self._coerce(item) for item in value or ()]
            return None if value is None else self._coerce(value)
        except ValueError as problem:
            raise typer.BadParameter(str(problem), ctx=ctx, param=param) from None

    def _coerce(self, value: Any) -> Any:
        if isinstance(value, self._kind):
            return value
        if self._kind is int:
            return self._number(value)
        if issubclass(self._kind, Enum):
            return self._choice(value)
        if self._kind is bool:
            raise ValueError("it takes no value")
        return _KINDS[self._kind](value)

    def _number(self, text: str) -> int:
        digits = text.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{text!r} is not a whole number")
        value = int(text)
        if self._low is not None and value < self._low:
            raise ValueError(f"{value} is too small: {self._low} is the least")
        if self._high is not None and value > self._high:
            raise ValueError(f"{value} is too large: {self._high} is the most")
        return value

    def _choice(self, text: str) -> Any:
        for member in self._kind:
            if member.value == text:
                return member
        values = [str(item.value) for item in self._kind]
        raise ValueError(f"{text!r} is none of {', '.join(values)}{did_you_mean(text, values)}")


def coerce_ourselves(command: Any) -> None:
    """Let the parameters of a command and of its subcommands be parsed by `Coercion`."""
    for each in _with_subcommands(command):
        # `get_params` has the option --help too, which is made once, with the names of a context.
        for param in each.get_params(typer.Context(each, help_option_names=HELP_OPTIONS)):
            descriptor = getattr(param, "type_descriptor", None)
            if descriptor is not None:
                info = descriptor.parameter_info
                param._runtime_param = Coercion(descriptor.annotation, info.min, info.max)


def _with_subcommands(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _with_subcommands(each)
