"""The table of settings, as it is listed."""

import json

import pytest

from ottla.cli.main import run
from ottla.cli.setting_table import setting_blocks, setting_rows


def listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert run(["config", "list", "--json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_setting_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    names = [(row["scope"], row["name"]) for row in listed([], capsys)]
    assert len(names) == len(set(names))
    assert ("topic", "retention.ms") in names
    assert ("broker", "log.retention.ms") in names
    assert ("broker", "num.partitions") in names


def test_a_row_says_what_one_needs_to_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [row for row in listed(["topic"], capsys) if row["name"] == "durability"]
    assert row["default"] == "fsync"
    assert row["allowed"] == "fsync, replicated"
    assert row["kind"] == "string"
    assert row["documentation"].endswith(".")


@pytest.mark.parametrize("scope", ["topic", "broker", "group"])
def test_one_scope_can_be_asked_for(scope: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["scope"] for row in listed([scope], capsys)} == {scope}


def test_settings_without_effect_are_marked_and_say_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = {(row["scope"], row["name"]): row for row in listed([], capsys)}
    assert rows["topic", "retention.ms"]["effect"] == "yes"
    flush = rows["topic", "flush.ms"]
    assert flush["effect"] == "none"
    assert "Without effect: the setting durability decides" in flush["documentation"]
    assert rows["broker", "log.flush.interval.ms"]["effect"] == "none"


@pytest.mark.parametrize("arguments", [[], ["topic"], ["broker"], ["group"]])
def test_people_can_read_the_list_at_100_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = {row["name"] for row in listed(arguments, capsys)}
    assert run(["config", "list", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    shown = {line.split(" = ")[0].strip() for line in lines if " = " in line and line[2] != " "}
    assert shown == names
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == [f"{scope} settings" for scope in arguments or ["topic", "broker", "group"]]


def test_a_narrow_terminal_gets_narrow_text() -> None:
    lines = setting_blocks(setting_rows(), 60)
    texts = [line for line in lines if line.startswith(" " * 6)]
    assert max(map(len, texts)) <= 60
