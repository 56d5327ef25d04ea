"""The entry point of `ottla`: runs a command and turns errors into exit codes."""

import gc
import os
import sys
from collections.abc import Sequence

from ottla.cli.exit_codes import FAILED, INTERRUPTED, WRONG_USAGE
from ottla.cli.output import OutputFailed, install_streams
from ottla.cli.terminal import print_error
from ottla.errors import UsageRefused


def main() -> int:
    """Run the process's command line; returns the exit code."""
    gc.disable()  # imports make little garbage, and searching for it takes a tenth of their time
    install_streams()
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command; an error becomes one line on standard error and an exit code."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except UsageRefused as problem:
        print_error(str(problem))
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has what it wanted
        _discard_output()
        return FAILED
    except OutputFailed as problem:
        _discard_output()
        print_error(str(problem))
        return FAILED
    except Exception as problem:
        if os.environ.get("OTTLA_TRACEBACK"):
            raise
        print_error(
            f"unexpected {type(problem).__name__}: {problem}; this is a defect of ottla,"
            " OTTLA_TRACEBACK=1 shows the traceback"
        )
        return FAILED
    return status


def _discard_output() -> None:
    """Let what is still buffered go nowhere: flushing it at the end would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Lazy imports: a broker must start fast, and import neither typer nor the client.
def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        from ottla.cli import serve  # noqa: PLC0415

        return serve.run(arguments[1:])

    from ottla.cli import app  # noqa: PLC0415

    return app.run(arguments)
