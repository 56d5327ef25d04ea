"""docs/cli.md as a contract: its exit codes, its commands and options, its blocks."""

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cli.processes import COMMAND, PATIENCE_S, Ottla, RunningBroker, call_ottla, run_ottla
from fakes.etcd_process import EtcdProcess, running

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "cli.md").read_text()
STATUSES: Final = {
    int(status): meaning
    for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
}
NOBODY: Final = "127.0.0.1:1"

Case = Callable[[RunningBroker, Path], int]


def status_of(*arguments: str, stdin: str = "") -> Case:
    """The exit code of a command in a process of its own."""
    return lambda broker, directory: (
        run_ottla(*arguments, broker=broker.address, stdin=stdin).returncode
    )


def record_refused(broker: RunningBroker, directory: Path) -> int:
    call_ottla(
        *("topic", "create", "docs-narrow", "--config", "max.message.bytes=1000"),
        broker=broker.address,
    )
    return run_ottla("produce", "docs-narrow", broker=broker.address, stdin="x" * 2000).returncode


def damage_found(broker: RunningBroker, directory: Path) -> int:
    log = directory / "damaged-0"
    log.mkdir()
    (log / f"{0:020d}.log").write_bytes(b"not a batch of records" * 10)
    return run_ottla("log", "verify", str(log)).returncode


def reader_gone(broker: RunningBroker, directory: Path) -> int:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([*COMMAND, "config", "list"], stdout=writing) as command:
        os.close(writing)
        return command.wait(PATIENCE_S)


def interrupted(broker: RunningBroker, directory: Path) -> int:
    call_ottla("produce", "docs-followed", broker=broker.address, stdin="one\n")
    with subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, "consume", "docs-followed", "--follow"],
        stdout=subprocess.PIPE,
        env={**os.environ, "OTTLA_BROKER": broker.address},
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"one\n"
        command.send_signal(signal.SIGINT)
        return command.wait(PATIENCE_S)


def port_taken(broker: RunningBroker, directory: Path) -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["serve", "--data", str(directory / "data"), "--listen", address]
        return run_ottla(*arguments).returncode


def member_away(broker: RunningBroker, directory: Path) -> int:
    etcd = EtcdProcess(directory)
    with running(etcd):
        store = f"etcd://{etcd.endpoint},{NOBODY}"
        return run_ottla("store", "status", "--store", store).returncode


# What the page says of a status, and a command that ends with it.
CASES: Final[list[tuple[int, str, Case]]] = [
    (0, "the command succeeded", status_of("topic", "list")),
    (1, "no broker", status_of("topic", "list", "--broker", NOBODY)),
    (1, "no such topic", status_of("consume", "docs-missing")),
    (1, "a record refused", record_refused),
    (1, "damage found", damage_found),
    (1, "the reader of its output has gone", reader_gone),
    (2, "a wrong option", status_of("topic", "list", "--wrong")),
    (2, "a bad setting", status_of("serve", "--set", "wrong=1")),
    (2, "only the broker knows", status_of("topic", "create", "docs-new", "--config", "wrong=1")),
    (2, "a bad line of input", status_of("produce", "docs-lines", "--format", "json", stdin="{")),
    (2, "nothing was changed", port_taken),
    (3, "something needs an operator", member_away),
    (130, "Ctrl-C", interrupted),
]


@pytest.mark.parametrize(("status", "meaning", "case"), CASES, ids=[case[1] for case in CASES])
def test_a_status_means_what_the_page_says(
    status: int, meaning: str, case: Case, broker: RunningBroker, tmp_path: Path
) -> None:
    assert meaning in STATUSES[status]
    assert case(broker, tmp_path) == status


def test_every_status_of_the_page_has_a_case() -> None:
    assert set(STATUSES) == {status for status, _, _ in CASES}


@pytest.mark.parametrize("page", ["cli.md", "getting-started.md"])
def test_every_console_block_is_run(page: str) -> None:
    """By tests/examples, which runs the marked ones."""
    text = (DOCS / page).read_text()
    assert "```console" in text
    assert len(re.findall(r"^```console$", text, re.MULTILINE)) == len(
        re.findall(r"^<!-- test -->\n```console$", text, re.MULTILINE)
    )


def listed_commands() -> list[str]:
    """The commands of blocks that are not run: of brokers, of Spark, of stopped brokers."""
    return re.findall(r"^ {4}((?:ottla|echo .* \| ottla) .*)$", PAGE, re.MULTILINE)


def test_commands_that_are_only_shown_have_the_options_that_they_show(ottla: Ottla) -> None:
    commands = listed_commands()
    assert len(commands) > 10
    for command in commands:
        for part in command.split("&&"):
            words = shlex.split(re.sub(r"^.*?\bottla ", "", part, count=1))
            path = [word for word in words[:2] if re.fullmatch(r"[a-z-]+", word)]
            if path[0] in {"serve", "consume", "produce"}:
                path = path[:1]
            if path == ["log", "strays"]:
                path.append(words[2])
            shown = ottla(*path, "--help")
            assert shown.returncode == 0, part
            for option in [word for word in words if word.startswith("--")]:
                assert f"{option.partition('=')[0]}" in shown.stdout, f"{part}: {option}"


COMMANDS: Final = [
    "topic create",
    "topic list",
    "topic describe",
    "topic alter",
    "topic trim",
    "topic delete",
    "produce",
    "consume",
    "group list",
    "group describe",
    "group reset-offsets",
    "group delete",
    "txn list",
    "txn describe",
    "txn abort",
    "topic reassign",
    "topic elect",
    "cluster info",
    "cluster status",
    "broker list",
    "broker drain",
    "broker undrain",
    "broker remove",
    "rebalance",
    "config list",
    "config get",
    "config set",
    "config unset",
    "store serve",
    "store status",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_on_the_page_and_has_help_with_examples(command: str, ottla: Ottla) -> None:
    assert f"ottla {command}" in PAGE
    shown = ottla(*command.split(), "--help")
    assert shown.returncode == 0
    assert f"  ottla {command}" in shown.stdout
    is_alone = command.startswith(("config list", "store"))
    assert ("--broker" in shown.stdout) != is_alone
    without = {"topic create", "topic alter", "topic delete", "group delete", "txn abort"}
    without |= {"store serve", "broker drain", "broker undrain", "broker remove"}
    assert ("--json" in shown.stdout) == (command not in without), command
