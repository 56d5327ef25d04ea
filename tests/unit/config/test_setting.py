"""One setting: how it is parsed, printed and refused."""

from dataclasses import dataclass

import pytest

from ottla.config import BrokerConfig, TopicConfig
from ottla.config.setting import (
    Kind,
    choice,
    decimal,
    flag,
    flatten,
    format_value,
    number,
    ordered,
    parse_all,
    parse_value,
    settings_of,
    several,
)
from ottla.errors import InvalidConfig


def test_an_unknown_setting_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.mss"):
        TopicConfig().override({"retention.mss": "1"})
    with pytest.raises(InvalidConfig, match=r"num\.partition"):
        BrokerConfig.parse({"num.partition": "1"})


def test_every_setting_prints_as_something_it_can_read_again() -> None:
    for config in (TopicConfig(), BrokerConfig()):
        for field, row in settings_of(type(config)):
            value = getattr(config, field)
            assert row.parse(format_value(value)) == value
            assert row.doc.endswith(".")


def test_toml_tables_and_quoted_names_mean_the_same() -> None:
    assert flatten({"num": {"partitions": 3}}) == flatten({"num.partitions": 3})
    assert flatten({"a": True, "b": [1, 2]}) == {"a": "true", "b": "1,2"}


def test_the_limits_of_a_number_are_allowed_and_what_is_beyond_is_not() -> None:
    @dataclass
    class Config:
        size: int = number("size", 5, "A size.", low=1, high=9)
        ratio: float = decimal("ratio", 0.5, "A ratio.", low=0, high=1)

    size, ratio = (row for _, row in settings_of(Config))
    assert (size.kind, size.allowed) == (Kind.INT, "1 to 9")
    assert (ratio.kind, ratio.allowed) == (Kind.DOUBLE, "0 to 1")
    assert [parse_value(size, text) for text in ("1", "9")] == [1, 9]
    assert [parse_value(ratio, text) for text in ("0", "1")] == [0.0, 1.0]
    for row, text in ((size, "0"), (size, "10"), (ratio, "-0.1"), (ratio, "1.1"), (ratio, "nan")):
        with pytest.raises(InvalidConfig, match=f"invalid value {row.name} = '{text}': allowed is"):
            parse_value(row, text)


def test_a_choice_is_made_of_its_text_and_a_flag_is_true_or_false() -> None:
    @dataclass
    class Config:
        color: str = choice("color", "red", ("red", "blue"), "A color.", make=str.upper)
        flag: bool = flag("flag", False, "A flag.")

    color, on = (row for _, row in settings_of(Config))
    assert (Config().color, parse_value(color, " blue ")) == ("RED", "BLUE")
    assert [parse_value(on, text) for text in ("true", "FALSE", " True ")] == [True, False, True]
    for row, text in ((color, "green"), (on, "1")):
        with pytest.raises(InvalidConfig, match=row.allowed):
            parse_value(row, text)


def test_several_values_have_the_order_of_the_choices_and_ordered_ones_their_own() -> None:
    @dataclass
    class Config:
        some: tuple[str, ...] = several("some", ("a",), ("a", "b", "c"), "Some.")
        in_order: tuple[str, ...] = ordered("in.order", ("a",), ("a", "b", "c"), "In order.")

    some, in_order = (row for _, row in settings_of(Config))
    assert parse_value(some, "c, a,c") == ("a", "c")
    assert parse_value(in_order, "c, a,c") == ("c", "a")
    assert parse_value(some, "") == ()
    for row, text in ((some, "a,d"), (in_order, "a,d"), (in_order, "")):
        with pytest.raises(InvalidConfig, match="a, b, c"):
            parse_value(row, text)


def test_all_unknown_settings_are_named_at_once() -> None:
    with pytest.raises(InvalidConfig, match="unknown topic settings: a, z; `ottla config list`"):
        parse_all({"z": "1", "a": "2"}, {}, "topic")
    with pytest.raises(InvalidConfig, match="unknown broker setting: a;"):
        parse_all({"a": "2"}, {}, "broker")
