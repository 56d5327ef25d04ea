"""Buffers of numpy and Arrow hold the same numbers, nulls included, in slices as well."""

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given

from ottla.spark.arrow_numpy import (
    array_of,
    booleans_of,
    numbers_of,
    repeated_text,
    validity_of,
)

numbers = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(numbers, st.sampled_from(["int32", "int64"]))
def test_numbers_and_nulls_become_an_arrow_array(values: list[int | None], name: str) -> None:
    made = array_of(
        np.array([value or 0 for value in values], name),
        is_null=np.array([value is None for value in values], np.bool_),
    )
    made.validate(full=True)
    assert made.equals(pa.array(values, name))


def test_numbers_may_be_times_and_lie_apart_from_each_other() -> None:
    every_other = np.arange(6)[::2]
    kind = pa.timestamp("us", "UTC")
    assert array_of(every_other, kind=kind).equals(pa.array([0, 2, 4], kind))


@given(numbers, st.data())
def test_slices_of_arrow_arrays_become_numbers(
    values: list[int | None], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(values)))
    part = pa.array(values, pa.int32()).slice(start, data.draw(st.integers(0, len(values))))
    valid = validity_of(part)
    assert valid.tolist() == [value is not None for value in part.to_pylist()]
    given_values = [value for value in part.to_pylist() if value is not None]
    assert numbers_of(part, np.int32)[valid].tolist() == given_values


def test_an_array_of_type_null_has_no_valid_row() -> None:
    assert validity_of(pa.nulls(3)).tolist() == [False] * 3


@given(st.lists(st.booleans(), max_size=20))
def test_booleans_become_an_arrow_array(values: list[bool]) -> None:
    assert booleans_of(np.array(values, np.bool_)).equals(pa.array(values, pa.bool_()))


@given(st.text(max_size=5), st.integers(0, 10))
def test_a_text_is_repeated(text: str, count: int) -> None:
    assert repeated_text(text, count).equals(pa.array([text] * count, pa.string()))
