"""`ottla pipeline`: streams and batches on Spark, without a program."""

# ruff: noqa: PLC0415  # Spark takes a second to import, and need not be installed at all
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli import terminal
from ottla.cli.options import parse_assignments
from ottla.cli.pipeline.options import (
    Bootstrap,
    Conf,
    need_spark,
    running,
    streaming,
    with_options_of,
)
from ottla.cli.session import ask
from ottla.cli.status import FAILED, OK
from ottla.client.positions import AtTime, Edge, parse_duration_ms, parse_log_position
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs, topic_name_problem
from ottla.spark.pipelines.choices import ArchiveFormat, OutputMode, SplitBy

if TYPE_CHECKING:
    from ottla.cli.pipeline.running import Running, Streaming
    from ottla.spark.pipelines.project import Project
    from ottla.spark.pipelines.rows import TopicSource

app = typer.Typer(rich_markup_mode=None, help="Move, sift and count records with Spark.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The topic to write to.")]
Schema = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS",
        help="Of values that are JSON, such as 'id BIGINT, name STRING'; else they are text.",
    ),
]
ProjectDirectory = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="The project; else the current directory.")
]


@app.command()
@with_options_of(streaming)
def archive(
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory for the files.")],
    format: Annotated[  # noqa: A002  the option's name
        ArchiveFormat, typer.Option(help="Files alone, or a Delta table.")
    ] = ArchiveFormat.PARQUET,
    partition_by: Annotated[
        list[SplitBy], typer.Option(help="A directory for each; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    *,
    how: "Streaming",
) -> int:
    """Keep every record of a topic in files, with all that it has.

    \b
    Examples:
      ottla pipeline archive orders ./lake/orders --once
      ottla pipeline archive orders ./lake/orders --format delta --partition-by date --every 5m
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.archive import Archive

    if format is ArchiveFormat.DELTA and find_spec("deltalake") is None:
        raise UsageRefused("--format delta needs deltalake: pip install 'ottla[lake]'")
    pipeline = Archive(
        source=_source(topic, "", how.running),
        path=_absolute(path),
        format=format,
        split_by=tuple(partition_by),
        name=how.name,
    )
    return run_stream(pipeline, how)


@app.command()
@with_options_of(streaming)
def dedupe(
    topic: Topic,
    out: Out,
    key: Annotated[
        str,
        typer.Option(
            metavar="EXPR", help="What must not come twice: SQL over key, value, partition, ..."
        ),
    ],
    within: Annotated[
        str, typer.Option(metavar="SPAN", help="For so long, by the times of the records.")
    ] = "10m",
    *,
    how: "Streaming",
) -> int:
    """Write records to another topic, without those that come again.

    \b
    Examples:
      ottla pipeline dedupe orders orders-once --key key --within 10m
      ottla pipeline dedupe orders orders-once --key "get_json_object(value, '$.id')" --once
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.dedupe import Dedupe

    pipeline = Dedupe(
        source=_source(topic, "", how.running),
        topic=_target(out),
        key=key,
        within_ms=parse_duration_ms(within),
        name=how.name,
    )
    return run_stream(pipeline, how)


@app.command()
@with_options_of(streaming)
def aggregate(
    topic: Topic,
    out: Out,
    window: Annotated[
        str, typer.Option(metavar="SPAN", help="Figures for each 1m, 1h of records' times.")
    ] = "",
    by: Annotated[
        list[str], typer.Option(metavar="EXPR", help="And for each of these; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    figure: Annotated[
        list[str],
        typer.Option(metavar="EXPR", help="Such as 'sum(value.amount) AS total'; repeatable."),
    ] = ["count(*) AS count"],  # noqa: B006  typer copies it
    sql: Annotated[
        str, typer.Option(metavar="QUERY", help="Instead of all this: a SELECT from records.")
    ] = "",
    watermark: Annotated[
        str, typer.Option(metavar="SPAN", help="How much later than others a record may come.")
    ] = "10m",
    mode: Annotated[
        OutputMode,
        typer.Option(help="append: each window once, when it is over; update: at every change."),
    ] = OutputMode.APPEND,
    schema: Schema = "",
    *,
    how: "Streaming",
) -> int:
    """Count and sum over windows of time; rows become JSON in another topic.

    \b
    Examples:
      ottla pipeline aggregate orders per-minute --window 1m --watermark 5m
      ottla pipeline aggregate orders per-shop --window 1h --by value.shop
        --figure 'sum(value.amount) AS total' --schema 'shop STRING, amount DOUBLE'
      ottla pipeline aggregate orders keys --mode update
        --sql "SELECT key, count(*) AS count FROM records GROUP BY key"
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.aggregate import Aggregate, Query, Windows

    if bool(sql) == bool(window) or (sql and by):
        raise UsageRefused("give --window with --by and --figure, or --sql alone")
    pipeline = Aggregate(
        source=_source(topic, schema, how.running),
        topic=_target(out),
        made=Query(sql) if sql else Windows(parse_duration_ms(window), tuple(by), tuple(figure)),
        watermark_ms=parse_duration_ms(watermark),
        mode=mode,
        name=how.name,
    )
    return run_stream(pipeline, how)


@app.command()
@with_options_of(streaming)
def enrich(
    topic: Topic,
    out: Out,
    join: Annotated[
        str, typer.Option(metavar="FILE", help="What is known: a .parquet, .json or .csv file.")
    ],
    on: Annotated[str, typer.Option(metavar="COLUMN", help="What both have.")],
    schema: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Of the values, such as 'id BIGINT, n INT'.")
    ],
    *,
    how: "Streaming",
) -> int:
    """Add to JSON values what a file knows about them.

    \b
    Examples:
      ottla pipeline enrich orders orders-with-names --join users.parquet --on user
        --schema 'user BIGINT, amount DOUBLE'
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.enrich import Enrich

    if "://" not in join and not Path(join).exists():
        raise UsageRefused(f"--join {join}: there is no such file")
    pipeline = Enrich(
        source=_source(topic, schema, how.running),
        topic=_target(out),
        file=_absolute(join),
        on=on,
        name=how.name,
    )
    return run_stream(pipeline, how)


@app.command("run")
@with_options_of(streaming)
def run_program(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="Has pipeline(spark).")],
    *,
    how: "Streaming",
) -> int:
    """Run a stream of your own: what the function pipeline(spark) of a file returns.

    The function returns df.writeStream with a format, without .start(): trigger, checkpoint and
    name come from the command.

    \b
    Examples:
      ottla pipeline run totals.py --once
      ottla pipeline run totals.py --every 30s --metrics 127.0.0.1:9101
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.program import Program

    return run_stream(Program(file=file, name=how.name), how)


@app.command()
@with_options_of(running)
def replay(
    origin: Annotated[
        str, typer.Argument(metavar="TOPIC|PATH", help="A topic, or what archive has written.")
    ],
    out: Out,
    first: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Records not older than this.")
    ] = "beginning",
    last: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Records older than this.")
    ] = "end",
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="No more than this in a second.")
    ] = None,
    *,
    how: "Running",
) -> int:
    """Write records again, those of a key in the order of their times; with --rate, all.

    Where each was before is in its headers: ottla.original-topic, -partition, -offset, -timestamp.

    \b
    Examples:
      ottla pipeline replay orders orders-again --from -2h
      ottla pipeline replay ./lake/orders orders --from 2026-11-15T00:00Z --to 2026-11-16T00:00Z
      ottla pipeline replay orders load-test --rate 500
    """
    from ottla.cli.pipeline.running import run_replay
    from ottla.spark.pipelines.replay import ArchivePath, Replay

    start_ms, end_ms = _time_ms("--from", first), _time_ms("--to", last)
    is_path = os.sep in origin or Path(origin).is_dir()
    if is_path and not Path(origin).is_dir():
        raise UsageRefused(f"{origin}: there is no such directory")
    pipeline = Replay(
        origin=ArchivePath(_absolute(origin)) if is_path else _source(origin, "", how),
        bootstrap=how.bootstrap,
        topic=_target(out),
        start_ms=start_ms,
        end_ms=end_ms,
        rate_per_s=rate,
    )
    return run_replay(pipeline, how)


@app.command("sql")
@with_options_of(running)
def ask_sql(
    topic: Topic,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT from records.")],
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many rows at most.")] = 1000,
    schema: Schema = "",
    *,
    how: "Running",
) -> int:
    """Ask a topic something: its records are the table `records`.

    \b
    Examples:
      ottla pipeline sql orders "SELECT key, count(*) FROM records GROUP BY key"
      ottla pipeline sql orders "SELECT max(value.amount) AS max FROM records"
        --schema 'amount DOUBLE' --json
    """
    from ottla.cli.pipeline.running import run_question
    from ottla.spark.pipelines.aggregate import Query
    from ottla.spark.pipelines.sql import Question

    question = Question(source=_source(topic, schema, how), query=Query(query))
    return run_question(question, how, limit)


# Declared pipelines


@app.command()
def init(
    name: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic it reads.")],
    broker: Bootstrap = "",
) -> int:
    """Make a project of declared tables for Spark's pipelines, ready to start.

    \b
    Examples:
      ottla pipeline init shop --topic orders
      ottla pipeline start shop
    """
    if problem := topic_name_problem(topic):
        raise UsageRefused(f"{topic!r}: {problem}")
    for file in _project(name).create(broker, topic):
        terminal.note(f"written: {file}")
    return OK


@app.command()
def validate(
    directory: ProjectDirectory = Path(),
    conf: Conf = [],  # noqa: B006  typer copies it
) -> int:
    """Check a project without moving data: spark-pipelines dry-run."""
    return _run_project(directory, "dry-run", conf, ())


@app.command()
def start(
    directory: ProjectDirectory = Path(),
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Forget all and read from the beginning.")
    ] = False,
    conf: Conf = [],  # noqa: B006  typer copies it
) -> int:
    """Bring all tables of a project up to date, and end: spark-pipelines run.

    \b
    Examples:
      ottla pipeline start shop
      ottla pipeline start shop --full-refresh
    """
    more = ("--full-refresh-all",) if full_refresh else ()
    return _run_project(directory, "run", conf, more)


def _run_project(directory: Path, action: str, conf: list[str], more: tuple[str, ...]) -> int:
    settings = parse_assignments("--conf", conf)
    project = _project(directory)
    from ottla.spark.java import NoJava
    from ottla.spark.pipelines.project import environment_of
    from ottla.spark.session import java_home

    command = project.command(action, settings, more)
    try:
        environment = environment_of(os.environ, java_home())
    except NoJava as problem:
        raise UsageRefused(str(problem)) from None
    need_spark()
    done = subprocess.run(  # noqa: S603  # a program of Spark's own
        command, env=environment, cwd=project.directory, check=False
    )
    if done.returncode:
        terminal.complain("the pipeline has failed; what Spark says of it is above")
        return FAILED
    return OK


def _project(directory: Path) -> "Project":
    for package in ("pyspark", "grpc", "yaml"):
        if find_spec(package) is None:
            raise UsageRefused(
                f"declared pipelines need {package}: pip install 'ottla[spark,java,pipelines]'"
            )
    from ottla.spark.pipelines.project import Project

    return Project(directory)


# What was asked for


def _source(topic: str, schema: str, how: "Running") -> "TopicSource":
    """The topic, if it is there."""
    from ottla.spark.pipelines.rows import TopicSource

    topics = [name.strip() for name in topic.split(",")]
    for name in topics:
        _target(name)
    ask(how.bootstrap, lambda client: client.describe(topics))
    return TopicSource(bootstrap=how.bootstrap, topic=",".join(topics), value_schema=schema or None)


def _absolute(path: str) -> str:
    """A path that means the same in every process; addresses of object stores do already."""
    return path if "://" in path else str(Path(path).absolute())


def _target(topic: str) -> str:
    if problem := topic_name_problem(topic):
        raise UsageRefused(f"{topic!r}: {problem}")
    return topic


def _time_ms(option: str, text: str) -> TimestampMs | None:
    """A time, or None for an end of the log."""
    moment = parse_log_position(text, SystemClock().now_ms())
    if moment in (Edge.BEGINNING, Edge.END):
        return None
    if not isinstance(moment, AtTime):
        raise UsageRefused(f"{option} {text}: write a time such as 2026-11-15T00:00Z or -2h")
    return moment.timestamp_ms
