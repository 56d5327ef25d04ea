"""What people and scripts see."""

import io
import sys

import pytest

from ottla.cli import terminal
from ottla.cli.terminal import Progress, align, format_size, one_line
from ottla.model import TimestampMs


class SteppedClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self.now_s * 1000))

    def monotonic_s(self) -> float:
        return self.now_s


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (2**60 * 5, "5120.0 PiB"),
    ],
)
def test_sizes_are_read_at_a_glance(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


def test_columns_begin_below_each_other() -> None:
    assert align([["NAME", "N"], ["orders", "3"], ["x", ""]]) == ["NAME    N", "orders  3", "x"]


def test_an_error_is_one_line_and_cannot_steer_the_terminal() -> None:
    assert one_line("two\nlines \x1b[31mred") == "two lines \\x1b[31mred"


def test_a_table_is_plain_when_no_terminal_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.write_table(["A"], [["[bold]x[/bold]"]])
    assert capsys.readouterr().out == "A\n[bold]x[/bold]\n"


def test_a_drawn_table_takes_no_markup_from_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    terminal.write_table(["NAME"], [["[bold]x[/bold]"]])
    assert "[bold]x[/bold]" in screen.getvalue()


def test_progress_is_shown_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Screen(), SteppedClock()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress(clock)
    for step in range(20):
        clock.now_s = step / 10
        progress.show(f"{step} done")
    progress.clear()
    assert screen.getvalue().split("\r\x1b[K") == ["", "5 done", "10 done", "15 done", ""]


def test_progress_stays_out_of_log_files(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), SteppedClock()
    monkeypatch.setattr(sys, "stderr", file)
    progress = Progress(clock)
    clock.now_s = 10
    progress.show("half")
    progress.clear()
    assert file.getvalue() == ""
