"""The command `ottla`: its beginning and its end, and every way it can end."""

import os
import sys
from collections.abc import Sequence

from ottla.cli.status import FAILED, INTERRUPTED, WRONG_USAGE
from ottla.cli.terminal import complain
from ottla.errors import UsageRefused


def main() -> int:
    """Run the command that the process was started with; returns its exit status."""
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """Run one command; whatever happens, people read one line and scripts get a status."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except UsageRefused as problem:
        complain(str(problem))
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing more may be flushed into that pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as problem:
        if os.environ.get("OTTLA_TRACEBACK"):
            raise
        complain(
            f"unexpected {type(problem).__name__}: {problem}; this is a defect of ottla,"
            " OTTLA_TRACEBACK=1 shows where"
        )
        return FAILED
    return status


# Imports wait until it is known what is asked for: a broker must be ready in an instant, and
# neither typer nor the client may cost it time or memory.
def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        from ottla.cli import serve  # noqa: PLC0415

        return serve.run(arguments[1:])
    from ottla.cli import root  # noqa: PLC0415

    return root.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
