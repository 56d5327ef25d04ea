import types
from typing import Any, get_type_hints

import pytest

from fakes.layouts import all_layouts
from ottla.model import Uuid
from ottla.protocol.schema import (
    Array,
    Fixed,
    Kind,
    Records,
    WireField,
    array,
    binary,
    boolean,
    float64,
    int32,
    message,
    message_versions,
    parse_versions,
    records,
    string,
    struct,
    uuid,
    wire,
    wire_fields,
)


def test_versions_are_written_as_kafka_writes_them() -> None:
    assert parse_versions("3-7") == range(3, 8)
    assert parse_versions("3+") == range(3, 2**15)
    assert parse_versions("3") == range(3, 4)
    assert len(parse_versions("none")) == 0


def test_a_field_left_out_holds_the_zero_of_its_kind() -> None:
    @struct
    class Point:
        x: int = wire(int32, "0+")

    @message(versions="0-1", flexible="1+")
    class Shape:
        name: str = wire(string, "0+")
        points: list[Point] = wire(array(Point), "0+")
        centre: Point = wire(Point, "1+")
        parent: Uuid = wire(uuid, "0+")
        note: str | None = wire(string, "0+", nullable="0+", default=None)

    shape = Shape(name="square")
    assert shape == Shape(name="square", points=[], centre=Point(x=0), parent=Uuid(bytes(16)))
    assert shape.note is None
    assert shape.points is not Shape().points
    assert message_versions(Shape).flexible == range(1, 2**15)


def test_every_annotation_says_what_its_field_holds() -> None:
    for layout in all_layouts():
        check_annotations(layout.message_class)


def check_annotations(struct_class: type) -> None:
    hints = get_type_hints(struct_class)
    for item in wire_fields(struct_class):
        assert hints[item.name] == expected_hint(item), f"{struct_class.__name__}.{item.name}"
        kind = item.wire.kind.element if isinstance(item.wire.kind, Array) else item.wire.kind
        if isinstance(kind, type):
            check_annotations(kind)


def expected_hint(item: WireField) -> Any:
    hint = python_type(item.wire.kind)
    return hint | None if item.wire.nullable else hint


def python_type(kind: Kind) -> Any:
    named: dict[str, Any] = {
        boolean.name: bool,
        float64.name: float,
        uuid.name: Uuid,
        string.name: str,
        binary.name: bytes,
        records.name: Records,
    }
    match kind:
        case Array():
            return types.GenericAlias(list, (python_type(kind.element),))
        case type():
            return kind
        case _:
            return named.get(kind.name, int)


def test_every_default_fits_its_field() -> None:
    for layout in all_layouts():
        for item in wire_fields(layout.message_class):
            default = item.make_default()
            if default is None:
                assert item.wire.nullable, f"{layout}: {item.name} is null where it may not be"
            elif isinstance(item.wire.kind, Fixed):
                assert isinstance(default, (int, float, bytes))


def test_structs_are_equal_when_class_and_fields_are() -> None:
    @struct
    class Here:
        x: int = wire(int32, "0+")
        name: str = wire(string, "0+")

    @struct
    class There:
        x: int = wire(int32, "0+")
        name: str = wire(string, "0+")

    assert Here(x=1, name="a") == Here(x=1, name="a")
    assert Here(x=1, name="a") != Here(x=2, name="a")
    assert Here(x=1, name="a") != Here(x=1, name="b")
    other: object = There(x=1, name="a")
    assert Here(x=1, name="a") != other
    assert repr(Here(x=1, name="a")) == "Here(x=1, name='a')"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Here())
