"""The command `ottla` with its subcommands, each imported on first use."""

import gc
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ottla import __version__
from ottla.cli.coercion import HELP_OPTIONS, coerce_ourselves
from ottla.cli.exit_codes import FAILED, WRONG_USAGE
from ottla.cli.options import BROKER_HELP
from ottla.cli.terminal import print_error
from ottla.client.errors import ClientError, Refused
from ottla.errors import ErrorCode, UsageRefused, did_you_mean

_COMMANDS: Final = (
    "serve",
    "topic",
    "produce",
    "consume",
    "group",
    "delay",
    "schedule",
    "dlq",
    "txn",
    "cluster",
    "broker",
    "store",
    "rebalance",
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
    "delay": "ottla.cli.delay",
    "schedule": "ottla.cli.schedule",
    "dlq": "ottla.cli.dlq",
    "txn": "ottla.cli.txn",
    "cluster": "ottla.cli.cluster",
    "broker": "ottla.cli.broker",
    "store": "ottla.cli.store",
    "rebalance": "ottla.cli.rebalance",
    "pipeline": "ottla.cli.pipeline.commands",
    "log": "ottla.cli.log.commands",
    "config": "ottla.cli.config",
}


# Refusals of a broker that are mistakes on the command line.
_NONSENSE: Final = frozenset(
    {
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
_UNKNOWN_COMMAND: Final = re.compile(r"No such command '(.*?)'")
_EXTRA_ARGUMENTS: Final = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")


class _Commands(TyperGroup):
    """Imports a command's module on first use; `--help` imports all."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        command = get_command(import_module(_MODULES[cmd_name]).app)
        command.name = cmd_name
        coerce_ourselves(command)
        if not gc.isenabled():  # `main` has switched it off for imports
            gc.freeze()
            gc.enable()
        return command


app = typer.Typer(
    cls=_Commands,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        command = get_command(app)
        coerce_ourselves(command)
        status = command.main(
            args=list(arguments) or ["--help"], prog_name="ottla", standalone_mode=False
        )
    except Refused as problem:
        print_error(str(problem))
        return WRONG_USAGE if problem.code in _NONSENSE else FAILED
    except ClientError as problem:
        print_error(str(problem))
        return FAILED
    except typer.Abort:
        print_error("aborted, nothing was done")
        return FAILED
    except typer.TyperException as problem:
        raise UsageRefused(_with_hint(problem)) from None
    except SystemExit:  # typer's end when the reader of standard output has left
        raise BrokenPipeError from None
    return int(status or 0)


def _with_hint(problem: typer.TyperException) -> str:
    context = getattr(problem, "ctx", None)
    path = context.command_path if context is not None else "ottla"
    text = _explain(problem, context)
    return text if text.endswith("?") else f"{text}; `{path} --help` shows the usage"


def _explain(problem: typer.TyperException, context: typer.Context | None) -> str:
    """A mistake on the command line in our words; typer's speak in several voices."""
    text = problem.format_message().rstrip(".")
    if isinstance(problem, typer.BadParameter) and problem.param is not None:
        name = problem.param.get_error_hint().strip("'[]")
        return f"{name}: {problem.message}" if problem.message else f"{name} is missing"
    if option := getattr(problem, "option_name", None):
        close = did_you_mean(option, getattr(problem, "possibilities", None) or ())
        if "requires an argument" in text:
            return f"{option} needs a value"
        return (
            f"{option} takes no value" if "not take" in text else f"unknown option {option}{close}"
        )
    if (found := _UNKNOWN_COMMAND.match(text)) and context is not None:
        names = context.command.list_commands(context)  # type: ignore[attr-defined]
        return f"unknown command {found[1]}{did_you_mean(found[1], names)}"
    if found := _EXTRA_ARGUMENTS.match(text):
        return f"unexpected argument {found[1]}"
    return f"{text[0].lower()}{text[1:]}"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
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
    """Run a broker until SIGTERM or Ctrl-C."""
    # The arguments are parsed by `serve`, which `main` calls directly.
    from ottla.cli import serve as command  # noqa: PLC0415  a client must not import the broker

    return command.run(context.args)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(is_wanted=True)
