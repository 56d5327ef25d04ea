"""Options that several commands share."""

import pytest

from ottla.cli import topic
from ottla.cli.main import run
from ottla.cli.options import parse_assignments, parse_brokers, parse_topic_choices
from ottla.errors import UsageRefused
from ottla.model import Endpoint


def test_one_broker_or_several_can_be_named() -> None:
    assert parse_brokers("a:1") == [Endpoint("a", 1)]
    assert parse_brokers("a:1, [::1]:2") == [Endpoint("a", 1), Endpoint("::1", 2)]


@pytest.mark.parametrize("text", ["", "a", "a:", "a:b", "a:1,", "a:99999"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageRefused, match=r"--broker: .* is not HOST:PORT"):
        parse_brokers(text)


def test_assignments_split_at_the_first_equals_sign() -> None:
    assert parse_assignments("--set", ["a=1", "b = x=y", "a=2"]) == {"a": "2", "b": "x=y"}
    with pytest.raises(UsageRefused, match="--set 'a' is not NAME=VALUE"):
        parse_assignments("--set", ["a"])


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["a"], {"a": None}),
        (["a:0"], {"a": {0}}),
        (["a:2,0,2", "b"], {"a": {0, 2}, "b": None}),
        (["a:0", "a:1"], {"a": {0, 1}}),
        (["a:0", "a"], {"a": None}),
        (["a", "a:0"], {"a": None}),
    ],
)
def test_a_topic_is_chosen_as_a_whole_or_in_part(
    texts: list[str], chosen: dict[str, set[int] | None]
) -> None:
    assert parse_topic_choices("--topic", texts) == chosen


@pytest.mark.parametrize("text", ["", ":0", "a:", "a:x", "a:0,", "a:-1", "a:0:1", "a:٣"])
def test_what_chooses_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageRefused, match="is not TOPIC or TOPIC:0,1,2"):
        parse_topic_choices("--topic", [text])


@pytest.mark.parametrize(
    ("arguments", "environment", "used"),
    [
        ([], "", "127.0.0.1:9092"),
        ([], "127.0.0.1:1", "127.0.0.1:1"),
        (["--broker", "127.0.0.1:2"], "127.0.0.1:1", "127.0.0.1:2"),
    ],
)
def test_the_nearest_broker_wins(
    arguments: list[str],
    environment: str,
    used: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = list[str]()

    def note(broker: str, question: object) -> object:
        asked.append(broker)
        raise UsageRefused("enough")

    monkeypatch.setenv("OTTLA_BROKER", environment)
    monkeypatch.setattr(topic, "run_with_client", note)
    run([*arguments, "topic", "list"])
    run(["--broker", "127.0.0.1:9", "topic", "list", *arguments])
    before, after = asked
    assert before == used
    assert after == (used if arguments else "127.0.0.1:9")
