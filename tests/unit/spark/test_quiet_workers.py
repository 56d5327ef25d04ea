"""Python workers print every error but the end of a session."""

import pytest

from ottla.spark.quiet_workers import print_exc


@pytest.mark.parametrize("ended", [BrokenPipeError(), ConnectionResetError()])
def test_the_end_of_a_session_is_not_an_error(
    ended: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise ended
    except OSError:
        print_exc()
    assert capsys.readouterr().err == ""


def test_other_errors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise OSError("the disk is full")
    except OSError:
        print_exc()
    assert "OSError: the disk is full" in capsys.readouterr().err
