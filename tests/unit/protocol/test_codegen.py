"""Code generation: layouts, sources, and what a traceback shows of them."""

import struct as layouts
import traceback

import pytest

from ottla.protocol.codec import encode
from ottla.protocol.codegen import FunctionSource, Layout, is_repeatable, reaches
from ottla.protocol.messages.classic_groups import HeartbeatRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import (
    array,
    boolean,
    float64,
    int16,
    int32,
    message,
    records,
    string,
    uuid,
    wire,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")


def test_a_version_that_does_not_exist_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="HeartbeatRequest has no version 5"):
        encode(HEARTBEAT, 5)


def test_a_traceback_shows_the_line_that_failed() -> None:
    with pytest.raises(AttributeError) as failed:
        encode(HeartbeatRequest(group_id=None), 3)  # type: ignore[arg-type]
    assert "content1 = content1.encode()" in "".join(traceback.format_exception(failed.value))


def test_a_layout_has_the_fields_of_its_version_and_tags_in_order() -> None:
    @message(versions="0-2", flexible="1+")
    class Growing:
        first: int = wire(int32, "0-1")
        nine: int = wire(int32, "1+", tag=9)
        second: int = wire(int32, "1+")
        three: int = wire(int32, "2+", tag=3)

    def names(version: int) -> tuple[list[str], list[str]]:
        layout = Layout(Growing, version)
        return (
            [item.name for item in layout.ordinary(Growing)],
            [item.name for item in layout.tagged(Growing)],
        )

    assert names(0) == (["first"], [])
    assert names(1) == (["first", "second"], ["nine"])
    assert names(2) == (["second"], ["three", "nine"])
    assert [Layout(Growing, version).flexible for version in range(3)] == [False, True, True]


def test_a_tag_in_a_version_that_is_not_flexible_is_our_own_mistake() -> None:
    @message(versions="0-1", flexible="1+")
    class Wrong:
        tagged: int = wire(int32, "0+", tag=0)

    with pytest.raises(AssertionError, match="Wrong v0: only flexible versions have tags"):
        Layout(Wrong, 0).tagged(Wrong)


def test_lines_are_indented_by_the_blocks_around_them() -> None:
    source = FunctionSource("run(count)")
    with source.block("if count > 1:"), source.block("if count > 2:"):
        source.line('return "many"')
    source.line('return "few"')
    assert str(source).splitlines() == [
        "def run(count):",
        "    if count > 1:",
        "        if count > 2:",
        '            return "many"',
        '    return "few"',
    ]
    run = source.compile("counting")
    assert [run(count) for count in (1, 2, 3)] == ["few", "few", "many"]


def test_a_variable_has_a_name_of_its_own() -> None:
    source = FunctionSource("run()")
    assert len({source.variable(stem) for stem in ("n", "n", "item", "n")}) == 4


def test_a_name_stands_for_one_value() -> None:
    source = FunctionSource("run()")
    assert source.refer("limit", 3) == "limit"
    assert source.refer("limit", 3) == "limit"
    with pytest.raises(AssertionError, match="limit is bound to another value already"):
        source.refer("limit", 4)
    source.line("return limit")
    assert source.compile("limit")() == 3


def test_consecutive_fields_are_one_call_of_struct() -> None:
    source = FunctionSource("run(number, flag)")
    pack = source.struct_method("pack", "h?")
    assert source.struct_method("pack", "h?") == pack
    source.line(f"return {pack}(number, flag)")
    assert source.compile("a number and a flag")(-2, True) == b"\xff\xfe\x01"


def test_calls_for_arrays_are_kept_by_count_unless_the_count_is_rare() -> None:
    """A client cannot fill the memory with one for every count that it thinks of."""
    source = FunctionSource("run()")
    source.line(f"return {source.struct_methods('pack', 'd')}")
    table = source.compile("a table")()
    for count in (1, 64, 65, 70_000):
        numbers = [float(number) for number in range(count)]
        assert table[count](*numbers) == layouts.pack(f">{count}d", *numbers)
    assert table.keys() >= {1, 64}
    assert all(count <= 64 for count in table)


def test_only_numbers_of_a_fixed_size_are_packed_as_a_whole_array() -> None:
    assert all(is_repeatable(kind) for kind in (int16, int32, float64))
    assert not any(is_repeatable(kind) for kind in (boolean, uuid, string, array(int32)))


def test_a_kind_is_sought_at_any_depth() -> None:
    assert reaches(ProduceRequest, records)
    assert reaches(array(ProduceRequest), records)
    assert reaches(string, string)
    assert not reaches(FetchRequest, records)
    assert not reaches(array(int32), records)
