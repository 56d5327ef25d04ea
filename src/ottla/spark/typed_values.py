"""Typed columns of values, with a problem for each value that could not be parsed."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

ParseAll = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class TypedValues:
    """A typed value or a problem for each value; the other is null."""

    typed: pa.Array
    problems: pa.Array  # of text, null where there is none

    @property
    def has_problems(self) -> bool:
        return bool(self.problems.null_count < len(self.problems))


def parse_by_bisection(
    values: pa.Array, value_type: pa.DataType, parse_all: ParseAll
) -> TypedValues:
    """Values by a parser that raises `ArrowInvalid` if there is a bad one anywhere.

    Bisects until the bad ones are alone: the good ones are parsed in bulk.
    """
    try:
        return TypedValues(parse_all(values), pa.nulls(len(values), pa.string()))
    except pa.ArrowInvalid as problem:
        if len(values) == 1:
            return TypedValues(pa.nulls(1, value_type), pa.array([str(problem)], pa.string()))
    half = len(values) // 2
    parts = [
        parse_by_bisection(part, value_type, parse_all) for part in (values[:half], values[half:])
    ]
    return TypedValues(
        pa.concat_arrays([part.typed for part in parts]),
        pa.concat_arrays([part.problems for part in parts]),
    )
