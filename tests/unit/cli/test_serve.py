"""What `ottla serve` makes of its arguments, before there is a broker."""

from pathlib import Path

import pytest

from ottla.cli.main import run
from ottla.cli.serve import choose_advertised, parse_options, read_config
from ottla.config import BrokerConfig
from ottla.errors import UsageRefused
from ottla.model import Endpoint


def test_nothing_said_means_the_defaults() -> None:
    options = parse_options([])
    assert options.data == Path("data")
    assert options.listen == Endpoint("127.0.0.1", 9092)
    assert options.advertise is None
    assert options.metrics is None
    assert options.node_id == 0
    assert options.config == BrokerConfig()
    assert not options.hints


def test_everything_that_can_be_said_arrives() -> None:
    said = "--data /d --listen [::1]:0 --advertise example.org:9092 --node-id 7 --hints"
    said += " --metrics 127.0.0.1:9100 --set num.partitions=4 --set log.retention.ms=1000"
    options = parse_options(said.split())
    assert options.data == Path("/d")
    assert options.listen == Endpoint("::1", 0)
    assert options.advertise == Endpoint("example.org", 9092)
    assert options.node_id == 7
    assert options.metrics == Endpoint("127.0.0.1", 9100)
    assert options.hints
    assert options.config.partitions_default == 4
    assert options.config.topic.retention_ms == 1000


def test_an_assignment_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "ottla.toml"
    file.write_text('"num.partitions" = 3\n[delete.topic]\nenable = false\n')
    config = read_config(file, ["num.partitions=5"])
    assert config.partitions_default == 5
    assert not config.delete_topic
    assert config.auto_create_topics


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--set", "num.partitons=4"], "unknown broker setting: num.partitons"),
        (["--set", "num.partitions=none"], "invalid value num.partitions = 'none'"),
        (["--set", "num.partitions"], "is not NAME=VALUE"),
        (["--listen", "9092"], "is not HOST:PORT"),
        (["--node-id", "-1"], "not a number from 0"),
        (["--log-level", "loud"], "--log-level: 'loud' is none of debug, info, warning, error"),
        (["--dat", "x"], "unknown option --dat; did you mean --data?"),
        (["--config", "missing.toml"], "missing.toml cannot be read: No such file"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert reason in said


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ottla.toml"
    file.write_text("num.partitions: 4")
    with pytest.raises(UsageRefused, match="is not TOML"):
        read_config(file, [])


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    assert "ottla serve --data ./data" in capsys.readouterr().out


EVERY_ADDRESS = ["0.0.0.0", "::", "0", "0:0:0:0:0:0:0:0"]


@pytest.mark.parametrize("host", EVERY_ADDRESS)
def test_every_address_is_advertised_by_a_name_that_can_be_resolved(host: str) -> None:
    names = ["localhost", "name-without-address.invalid", "127.0.0.1", "other"]
    found = choose_advertised(Endpoint(host, 9092), None, names=lambda: names)
    assert found == Endpoint("127.0.0.1", 9092)


@pytest.mark.parametrize("host", EVERY_ADDRESS)
def test_every_address_without_a_usable_name_is_refused(host: str) -> None:
    names = ["localhost", "name-without-address.invalid", ""]
    with pytest.raises(UsageRefused, match=r"add --advertise HOST:PORT"):
        choose_advertised(Endpoint(host, 9092), None, names=lambda: names)


def test_one_address_is_advertised_as_it_is() -> None:
    for host in ("127.0.0.1", "::1", "10.0.0.1", "queue.example.org"):
        assert choose_advertised(Endpoint(host, 9092), None) is None


@pytest.mark.parametrize("host", EVERY_ADDRESS)
def test_every_address_cannot_be_advertised(host: str) -> None:
    with pytest.raises(UsageRefused, match="no client can connect to every address"):
        choose_advertised(Endpoint("127.0.0.1", 9092), Endpoint(host, 9092))
