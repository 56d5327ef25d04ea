"""`ottla pipeline`: ready-made Spark streams and batches."""

# ruff: noqa: PLC0415  # Spark takes a second to import, and need not be installed at all
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.options import parse_assignments
from ottla.cli.pipeline.options import (
    Bootstrap,
    Conf,
    need_spark,
    running,
    streaming,
    with_options_of,
)
from ottla.cli.run_client import run_with_client
from ottla.client.positions import AtTime, Edge, parse_duration_ms, parse_log_position
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs, topic_name_problem
from ottla.spark.pipelines.option_values import ArchiveFormat, OutputMode, SplitBy

if TYPE_CHECKING:
    from ottla.cli.pipeline.running import Running, Streaming
    from ottla.spark.pipelines.project import Project
    from ottla.spark.pipelines.topic_frames import TopicSource

app = typer.Typer(
    rich_markup_mode=None,
    help="Archive, deduplicate, aggregate, enrich, replay and query records with Spark.",
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="Topic to write to.")]
Schema = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS",
        help="Schema of JSON values, such as 'id BIGINT, name STRING'; default: text.",
    ),
]
ProjectDirectory = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Project directory; default: the current one.")
]


@app.command()
@with_options_of(streaming)
def archive(
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Directory for the files.")],
    format: Annotated[  # noqa: A002  the option's name
        ArchiveFormat, typer.Option(help="Parquet files, or a Delta table.")
    ] = ArchiveFormat.PARQUET,
    partition_by: Annotated[
        list[SplitBy], typer.Option(help="Column to partition by; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    *,
    how: "Streaming",
) -> int:
    """Write every record of a topic, with all its fields, to files.

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
            metavar="EXPR",
            help="SQL expression that identifies duplicates, over key, value, partition, ...",
        ),
    ],
    within: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long duplicates are dropped, by record time."),
    ] = "10m",
    *,
    how: "Streaming",
) -> int:
    """Copy a topic to another one without duplicates.

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
        str, typer.Option(metavar="DURATION", help="Length of time windows, such as 1m or 1h.")
    ] = "",
    by: Annotated[
        list[str], typer.Option(metavar="EXPR", help="Group also by this expression; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    aggregates: Annotated[
        list[str],
        typer.Option(
            "--figure",
            metavar="EXPR",
            help="Aggregate, such as 'sum(value.amount) AS total'; repeatable.",
        ),
    ] = ["count(*) AS count"],  # noqa: B006  typer copies it
    sql: Annotated[
        str,
        typer.Option(metavar="QUERY", help="SELECT from records, instead of the options above."),
    ] = "",
    watermark: Annotated[
        str, typer.Option(metavar="DURATION", help="How late a record may arrive.")
    ] = "10m",
    mode: Annotated[
        OutputMode,
        typer.Option(help="append: each window once, when it ends; update: at every change."),
    ] = OutputMode.APPEND,
    schema: Schema = "",
    *,
    how: "Streaming",
) -> int:
    """Aggregate records over time windows and write the rows as JSON to another topic.

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
        computed=(
            Query(sql) if sql else Windows(parse_duration_ms(window), tuple(by), tuple(aggregates))
        ),
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
        str, typer.Option(metavar="FILE", help="File to join: .parquet, .json or .csv.")
    ],
    on: Annotated[str, typer.Option(metavar="COLUMN", help="Column to join on.")],
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Schema of the values, such as 'id BIGINT, n INT'."),
    ],
    *,
    how: "Streaming",
) -> int:
    """Join JSON values with the rows of a file.

    \b
    Examples:
      ottla pipeline enrich orders orders-with-names --join users.parquet --on user
        --schema 'user BIGINT, amount DOUBLE'
    """
    from ottla.cli.pipeline.running import run_stream
    from ottla.spark.pipelines.enrich import Enrich

    if "://" not in join and not Path(join).exists():
        raise UsageRefused(f"--join {join}: no such file")
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
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", help="Python file with a function pipeline(spark).")
    ],
    *,
    how: "Streaming",
) -> int:
    """Run your own stream, which the function pipeline(spark) of a file returns.

    The function returns df.writeStream with a format, without .start(): trigger, checkpoint and
    name are set by the command.

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
        str, typer.Argument(metavar="TOPIC|PATH", help="Topic, or directory of an archive.")
    ],
    out: Out,
    first: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Records from this time on.")
    ] = "beginning",
    last: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Records before this time.")
    ] = "end",
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most N records per second.")
    ] = None,
    *,
    how: "Running",
) -> int:
    """Write records again, ordered by time within a key; with --rate, ordered by time.

    Their origin is in headers: ottla.original-topic, -partition, -offset, -timestamp.

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
        raise UsageRefused(f"no such directory: {origin}")
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
def query_sql(
    topic: Topic,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SELECT from records.")],
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most N rows.")] = 1000,
    schema: Schema = "",
    *,
    how: "Running",
) -> int:
    """Query a topic with SQL: its records are the table `records`.

    \b
    Examples:
      ottla pipeline sql orders "SELECT key, count(*) FROM records GROUP BY key"
      ottla pipeline sql orders "SELECT max(value.amount) AS max FROM records"
        --schema 'amount DOUBLE' --json
    """
    from ottla.cli.pipeline.running import run_query
    from ottla.spark.pipelines.aggregate import Query
    from ottla.spark.pipelines.sql import TopicQuery

    sql_query = TopicQuery(source=_source(topic, schema, how), query=Query(query))
    return run_query(sql_query, how, limit)


# Declared pipelines


@app.command()
def init(
    name: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Topic that it reads.")],
    broker: Bootstrap = "",
) -> int:
    """Create a project of declared tables for Spark's declarative pipelines.

    \b
    Examples:
      ottla pipeline init shop --topic orders
      ottla pipeline start shop
    """
    if problem := topic_name_problem(topic):
        raise UsageRefused(f"{topic!r}: {problem}")
    for file in _project(name).create(broker, topic):
        terminal.print_note(f"written: {file}")
    return OK


@app.command()
def validate(
    directory: ProjectDirectory = Path(),
    conf: Conf = [],  # noqa: B006  typer copies it
) -> int:
    """Check a project without processing data: spark-pipelines dry-run."""
    return _run_project(directory, "dry-run", conf, ())


@app.command()
def start(
    directory: ProjectDirectory = Path(),
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Discard all state and read from the beginning.")
    ] = False,
    conf: Conf = [],  # noqa: B006  typer copies it
) -> int:
    """Update all tables of a project, then end: spark-pipelines run.

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
    from ottla.spark.java_home import NoJava
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
        terminal.print_error("the pipeline failed; see Spark's output above")
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


def _source(topic: str, schema: str, how: "Running") -> "TopicSource":
    """The topic as source; an unknown one is refused."""
    from ottla.spark.pipelines.topic_frames import TopicSource

    topics = [name.strip() for name in topic.split(",")]
    for name in topics:
        _target(name)
    run_with_client(how.bootstrap, lambda client: client.describe(topics))
    return TopicSource(bootstrap=how.bootstrap, topic=",".join(topics), value_schema=schema or None)


def _absolute(path: str) -> str:
    """An absolute path; addresses of object stores are returned as they are."""
    return path if "://" in path else str(Path(path).absolute())


def _target(topic: str) -> str:
    if problem := topic_name_problem(topic):
        raise UsageRefused(f"{topic!r}: {problem}")
    return topic


def _time_ms(option: str, text: str) -> TimestampMs | None:
    """The time of a position, or None for an end of the log."""
    position = parse_log_position(text, SystemClock().now_ms())
    if position in (Edge.BEGINNING, Edge.END):
        return None
    if not isinstance(position, AtTime):
        raise UsageRefused(f"{option} {text}: write a time such as 2026-11-15T00:00Z or -2h")
    return position.timestamp_ms
