"""Options shared by all pipelines, declared once and added to each command."""

# ruff: noqa: PLC0415  # Spark takes a second to import, and need not be installed at all
import inspect
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli import terminal
from ottla.cli.options import (
    BROKER_DEFAULT,
    BROKER_HELP,
    Json,
    parse_assignments,
    parse_brokers,
    resolve_broker,
)
from ottla.client.positions import parse_duration_ms
from ottla.errors import UsageRefused
from ottla.model import Endpoint

if TYPE_CHECKING:
    from ottla.cli.pipeline.running import Running, Streaming

Command = Callable[..., int]

MASTER: Final = "local[*]"
CHECKPOINTS: Final = Path("checkpoints")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--broker",
        "--bootstrap",
        metavar="HOST:PORT",
        help=BROKER_HELP,
        show_default=BROKER_DEFAULT,
        callback=resolve_broker,
    ),
]
Master = Annotated[
    str, typer.Option(metavar="URL", help="Spark master, such as spark://host:7077.")
]
Conf = Annotated[
    list[str], typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; read and write nothing.")]
Once = Annotated[bool, typer.Option("--once", help="Process the records that exist now, then end.")]
Every = Annotated[
    str, typer.Option(metavar="DURATION", help="Interval of batches; default: without pause.")
]
Name = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the checkpoint; default: from the topics.")
]
Checkpoints = Annotated[Path, typer.Option(metavar="DIR", help="Directory of checkpoints.")]
Metrics = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the metrics endpoint for Prometheus.")
]


def with_options_of(make: Callable[..., Any]) -> Callable[[Command], Command]:
    """Replace the last parameter of a command by those of `make`, whose result it receives."""
    shared = inspect.signature(make).parameters

    def decorate(command: Command) -> Command:
        *own, last = inspect.signature(command).parameters.values()

        @wraps(command)
        def run(**given: Any) -> int:
            made = make(**{name: given.pop(name) for name in shared})
            return command(**given, **{last.name: made})

        parameters = [*own, *shared.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def running(
    broker: Bootstrap = "",
    master: Master = MASTER,
    conf: Conf = [],  # noqa: B006  typer copies it
    dry_run: DryRun = False,
    json: Json = False,
) -> "Running":
    """The options of a batch."""
    settings = parse_assignments("--conf", conf)
    parse_brokers(broker)
    need_spark()
    from ottla.cli.pipeline.running import Running

    return Running(bootstrap=broker, master=master, conf=settings, is_dry=dry_run, is_json=json)


def streaming(
    once: Once = False,
    every: Every = "",
    name: Name = "",
    checkpoints: Checkpoints = CHECKPOINTS,
    metrics: Metrics = "",
    broker: Bootstrap = "",
    master: Master = MASTER,
    conf: Conf = [],  # noqa: B006  typer copies it
    dry_run: DryRun = False,
    json: Json = False,
) -> "Streaming":
    """The options of a stream."""
    if once and every:
        raise UsageRefused("--once and --every exclude each other: leave one out")
    every_ms = parse_duration_ms(every) if every else None
    endpoint = _endpoint(metrics) if metrics else None
    how = running(broker, master, conf, dry_run, json)
    from ottla.cli.pipeline.running import Streaming

    return Streaming(
        running=how,
        name=name,
        checkpoints=checkpoints,
        is_once=once,
        every_ms=every_ms,
        metrics=endpoint,
    )


def need_spark(package: str = "pyspark", extras: str = "spark,java") -> None:
    """Print that Spark is starting, or refuse if the package is missing."""
    try:
        is_there = find_spec(package) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise UsageRefused(
            f"this needs {package}, which is not installed: pip install 'ottla[{extras}]'"
        )
    terminal.print_note("starting Spark ...")


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ValueError as problem:
        raise UsageRefused(f"--metrics: {problem}") from None
