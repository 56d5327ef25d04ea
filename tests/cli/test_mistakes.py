"""Mistakes and what people read: each command of mistakes.txt, its message and its exit code."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cli.processes import Ottla, call_ottla, run_ottla, start_broker

TABLE: Final = Path(__file__).with_name("mistakes.txt")
PROCESS_EVERY: Final = 7  # each seventh mistake is made in a process of its own too
INPUT: Final = "{" * 2000 + "\n"
# Words of Python, Pydantic and typer, which no user should have to know.
FOREIGN: Final = re.compile(
    r"Traceback|Error\b|Input should|valid integer|int\(\)|literal|NoneType|\bargument\(s\)|Errno"
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command line, its text on standard error with `...` for anything, and its exit code."""

    command: str
    text: str
    status: int

    @property
    def arguments(self) -> list[str]:
        """The words behind `ottla`."""
        words = shlex.split(self.command)
        return words[words.index("ottla") + 1 :]

    @property
    def broker(self) -> str | None:
        """OTTLA_BROKER, if it is set before the command."""
        name, _, value = shlex.split(self.command)[0].partition("=")
        return value if name == "OTTLA_BROKER" else None


def read_mistakes() -> list[Mistake]:
    found = []
    for part in TABLE.read_text().split("\n\n"):
        command, *text, status = part.strip().splitlines()
        found.append(
            Mistake(
                command.removeprefix("$ "),
                "".join(f"{line}\n" for line in text),
                int(status.removeprefix("status ")),
            )
        )
    return found


MISTAKES: Final = read_mistakes()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with what the mistakes are about, and nothing of similar names."""
    running = start_broker(tmp_path_factory.mktemp("shop") / "data")

    def make(*arguments: str, stdin: str = "") -> None:
        done = call_ottla(*arguments, broker=running.address, stdin=stdin)
        assert done.returncode == 0, done

    make("topic", "create", "orders", "--partitions", "3")
    make("produce", "orders", "--partition", "1", stdin="a\nb\nc\n")
    make("topic", "create", "compacted", "--config", "cleanup.policy=compact")
    make("topic", "create", "narrow", "--config", "max.message.bytes=1000")
    make("topic", "create", "reminders", "--config", "delay.enable=true")
    make("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest")
    yield running.address
    assert running.stop() == 0


def is_as_written(mistake: Mistake, done: subprocess.CompletedProcess[str]) -> bool:
    pattern = re.escape(mistake.text).replace(re.escape("..."), ".*")
    is_said = re.fullmatch(pattern, done.stderr) is not None
    return is_said and done.returncode == mistake.status and done.stdout == ""


def run_all(
    mistakes: list[Mistake], shop: str, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    others = []
    for mistake in mistakes:
        broker = shop if mistake.broker is None else mistake.broker
        done = run(*mistake.arguments, broker=broker, stdin=INPUT)
        if not is_as_written(mistake, done):
            others.append((mistake.command, done.returncode, done.stderr, done.stdout))
    assert others == []


def test_each_mistake_has_its_message_and_its_exit_code(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_all(MISTAKES, shop, call_ottla)
    assert os.listdir(tmp_path) == []


def test_a_process_of_its_own_says_the_same(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_all(MISTAKES[::PROCESS_EVERY], shop, run_ottla)


def test_the_table_is_large_and_in_our_words() -> None:
    assert len(MISTAKES) >= 100
    assert len(MISTAKES[::PROCESS_EVERY]) >= 20
    assert len({mistake.command for mistake in MISTAKES}) == len(MISTAKES)
    assert {mistake.status for mistake in MISTAKES} == {0, 1, 2}
    for mistake in MISTAKES:
        assert not FOREIGN.search(mistake.text), mistake
        is_error = mistake.status != 0
        assert mistake.text.startswith("ottla: ") == is_error, mistake


def test_one_record_is_one_record(ottla: Ottla) -> None:
    assert ottla("produce", "single", stdin="x\n").stderr == "1 record written to single\n"
    assert ottla("produce", "single", stdin="x\ny\n").stderr == "2 records written to single\n"
