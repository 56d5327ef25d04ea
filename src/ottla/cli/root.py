"""`ottla` itself: which commands there are. Only the one that is asked for is imported."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ottla import __version__
from ottla.cli.options import BROKER_HELP
from ottla.cli.status import FAILED
from ottla.cli.terminal import complain
from ottla.client.errors import ClientError, NoSuchGroup, NoSuchTopic, Unreachable
from ottla.errors import UsageRefused

_COMMANDS: Final = (
    "serve",
    "topic",
    "produce",
    "consume",
    "group",
    "txn",
    "pipeline",
    "log",
    "config",
    "version",
)
_MODULES: Final = {
    "topic": "ottla.cli.topic",
    "produce": "ottla.cli.produce",
    "consume": "ottla.cli.consume",
    "group": "ottla.cli.group.commands",
    "txn": "ottla.cli.txn",
    "pipeline": "ottla.cli.pipeline.commands",
    "log": "ottla.cli.log.commands",
    "config": "ottla.cli.config",
}


class _Commands(TyperGroup):
    """Finds a command's module when it is needed; `--help` needs them all."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        command = get_command(import_module(_MODULES[cmd_name]).app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    try:
        status = get_command(app).main(
            args=list(arguments) or ["--help"], prog_name="ottla", standalone_mode=False
        )
    except Unreachable as problem:
        complain(f"{problem}; is one running? `ottla serve` starts one, --broker names another")
        return FAILED
    except NoSuchTopic as problem:
        complain(f"{problem}; `ottla topic list` shows what does, `ottla topic create` makes one")
        return FAILED
    except NoSuchGroup as problem:
        complain(f"{problem}; `ottla group list` shows what does")
        return FAILED
    except ClientError as problem:
        complain(str(problem))
        return FAILED
    except typer.Abort:
        complain("nothing was done")
        return FAILED
    except typer.TyperException as problem:
        raise UsageRefused(_with_hint(problem)) from None
    return int(status or 0)


def _with_hint(problem: typer.TyperException) -> str:
    context = getattr(problem, "ctx", None)
    path = context.command_path if context is not None else "ottla"
    return f"{problem.format_message().rstrip('.')}; `{path} --help` shows what can be said"


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"ottla {__version__}\n")
        raise typer.Exit


@app.callback()
def ottla(
    broker: Annotated[
        str,
        typer.Option("--broker", metavar="HOST:PORT", envvar="OTTLA_BROKER", help=BROKER_HELP),
    ] = "",
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """A distributed message queue that speaks Kafka's wire protocol."""


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> int:
    """Run a broker until it is told to stop."""
    # The arguments are read in one place only; `main` comes there without this detour.
    from ottla.cli import serve as command  # noqa: PLC0415  a client must not import the broker

    return command.run(context.args)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(asked=True)
