"""`tidemq pipeline`: from a broker's streams into tables and alerts, on Spark.

Spark is imported when a command runs, so that other commands start quickly.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.cli.pipeline_options import (
    AllowDataLoss,
    BatchBytesMax,
    BytesMax,
    CaFile,
    CatalogFile,
    Cert,
    Checkpoint,
    FailOnUnreachable,
    Format,
    Key,
    MaintainBatches,
    Master,
    MetricsPort,
    Nodes,
    PasswordFile,
    PipelineFile,
    RowsMax,
    RulesFile,
    StorageFile,
    TokenFile,
    Trigger,
    Url,
    Urls,
    User,
    format_of,
    storage_of,
    target_of,
)
from tidemq.errors import TideMQError, UsageError

app = typer.Typer(
    help="Bring streams into tables with Spark (pip install 'tidemq[pipeline]').",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def ingest(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI that all executors reach.")],
    url: Urls,
    token_file: TokenFile = "",
    cafile: CaFile = "",
    master: Master = "local[*]",
    rules: RulesFile = None,
    checkpoint: Checkpoint = "",
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the current last message.")] = False,
    start: Annotated[
        str, typer.Option(help="Where to begin: earliest, latest, an offset, a time with its zone.")
    ] = "earliest",
    allow_data_loss: AllowDataLoss = False,
    rows_max: RowsMax = 1_000_000,
    batch_bytes_max: BatchBytesMax = 0,
    bytes_max: BytesMax = 64 << 20,
    trigger: Trigger = 1.0,
    maintain_batches: MaintainBatches = 0,
    nodes: Nodes = False,
    fail_on_unreachable: FailOnUnreachable = False,
    metrics_port: MetricsPort = None,
    metrics_host: Annotated[str, typer.Option(metavar="HOST", help="The address of that.")] = "127.0.0.1",
) -> None:
    """Bring a stream into TABLES/STREAM/bronze, a table, each message once; with --rules, decoded
    into TABLES/STREAM/silver/RULE, and what cannot be into TABLES/STREAM/dead_letters. Continues where
    the last run stopped, also when that was killed.
    """
    try:
        from tidemq.pipeline.decode.payload_rules import load_rules
        from tidemq.pipeline.lake.ingest import Ingest, run_ingest
        from tidemq.pipeline.service.board import Board
        from tidemq.pipeline.service.exposition import exposed
        from tidemq.pipeline.spark.session import spark_session

        job = Ingest(
            url=url,
            nodes=nodes,
            fail_on_unreachable=fail_on_unreachable,
            token_file=token_file,
            cafile=cafile,
            stream=stream,
            tables=tables,
            start=start,
            fail_on_data_loss=not allow_data_loss,
            rows_max=rows_max,
            batch_bytes_max=batch_bytes_max,
            bytes_max=bytes_max,
            trigger_s=trigger,
            maintain_batches=maintain_batches,
            rules=load_rules(rules) if rules else (),
            checkpoint=checkpoint,
            storage=storage_of(storage_options),
            format=format_of(table_format, catalog),
        )
        job.check()  # a wrong rule, address, token or name is told before Spark takes its time
        job.describe()
        board = Board([stream])
        with _logged(), ExitStack() as opened:
            if metrics_port is not None:
                opened.enter_context(exposed([job], board, metrics_host, metrics_port))
            session = spark_session(master, f"tidemq ingest {stream}", job.storage.of_spark)
            spark = opened.enter_context(session)
            spark.streams.addListener(board.listener)
            run_ingest(spark, job, once=once, measures=board.measures[stream])
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def refine(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI, as ingest has it.")],
    rules: Annotated[Path, typer.Option(metavar="FILE", help="TOML with the rules.")],
    rule: Annotated[str, typer.Option(metavar="NAME", help="Which of them.")],
    start: Annotated[
        str, typer.Option("--from", help="Keep what comes before: earliest (nothing), an offset, a time.")
    ] = "earliest",
    allow_data_loss: Annotated[
        bool,
        typer.Option("--allow-data-loss", help="Remove rows even if their messages have expired in bronze."),
    ] = False,
    master: Master = "local[*]",
    rows_max: RowsMax = 1_000_000,
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
) -> None:
    """Make the tables of a rule anew from bronze: of one that has changed, or was added; each message once.

    May run beside ingest, and needs no broker.
    """
    try:
        from tidemq.pipeline.decode.payload_rules import load_rules
        from tidemq.pipeline.lake.plan import Lake
        from tidemq.pipeline.lake.rework import rework
        from tidemq.pipeline.sources.stream_options import Position
        from tidemq.pipeline.spark.session import spark_session

        lake = Lake(
            stream=stream,
            tables=tables,
            rules=load_rules(rules),
            rows_max=rows_max,
            storage=storage_of(storage_options),
            format=format_of(table_format, catalog),
        )
        lake.rule(rule)  # what is wrong with the arguments is told before Spark takes its time
        Position.parse("--from", start)
        with spark_session(master, f"tidemq refine {stream}") as spark:
            rework(spark, lake, rule, start, allow_data_loss=allow_data_loss)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def maintain(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI, as ingest has it.")],
    every: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Again and again; 0: once.")] = 0.0,
    keep: Annotated[
        int, typer.Option(min=0, metavar="HOURS", help="So long readers of older versions find their files.")
    ] = 7 * 24,
    bronze_days: Annotated[
        int,
        typer.Option(
            min=0, metavar="DAYS", help="Remove older messages of bronze that are decoded; 0: none."
        ),
    ] = 0,
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML with the rules that must have decoded them; default: each with a table.",
        ),
    ] = None,
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
) -> None:
    """Put small files together and remove those that nobody needs any more, beside a running ingest.

    Needs neither the broker nor Spark.
    """
    try:
        from tidemq.pipeline.decode.payload_rules import load_rules
        from tidemq.pipeline.lake.maintenance import maintain_all
        from tidemq.pipeline.lake.plan import Lake

        lake = Lake(
            stream=stream,
            tables=tables,
            rules=load_rules(rules) if rules else (),
            storage=storage_of(storage_options),
            format=format_of(table_format, catalog),
        )
        while True:
            for line in maintain_all(lake, keep, bronze_days):
                print(line, flush=True)
            if not every:
                return
            time.sleep(every)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def run(file: PipelineFile) -> None:
    """Do all that a file says, in one JVM: streams into tables and alerts, sinks, maintenance. Until SIGTERM.

    A job that cannot go on does not stop the others, and is begun again once a minute.
    """
    try:
        from tidemq.pipeline.service.board import Board
        from tidemq.pipeline.service.exposition import exposed
        from tidemq.pipeline.service.pipeline_file import load_pipeline
        from tidemq.pipeline.service.supervising import SHARED, jobs_of, run_jobs
        from tidemq.pipeline.spark.session import spark_session

        plan, stop = load_pipeline(file), threading.Event()
        table = plan.table
        plan.check()  # before Spark takes its time
        ingests = [each.ingest for each in plan.streams]
        board = Board([each.stream for each in ingests])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with _logged(), ExitStack() as opened:
            if table.metrics_port is not None:
                opened.enter_context(exposed(ingests, board, table.metrics_host, table.metrics_port))
            settings = {**SHARED, **ingests[0].storage.of_spark}
            spark = opened.enter_context(spark_session(table.master, f"tidemq run {file}", settings))
            run_jobs(spark, jobs_of(plan, board, stop), board, stop)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def check(file: PipelineFile) -> None:
    """Look whether a file for `run` is right, and draw it. Needs neither the broker nor Spark."""
    try:
        from rich.console import Console

        from tidemq.pipeline.service.drawing import drawn
        from tidemq.pipeline.service.pipeline_file import load_pipeline

        Console(highlight=False, markup=False).print(drawn(load_pipeline(file)))
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def status(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI, as ingest has it.")],
    url: Urls = "",
    token_file: TokenFile = "",
    cafile: CaFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each table.")] = False,
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
) -> None:
    """Show what is in the tables of a stream, how far each has got, and how many messages it is behind;
    of bronze only with --url.

    Needs no Spark.
    """
    try:
        from tidemq.pipeline.lake.plan import Lake
        from tidemq.pipeline.lake.status import as_row, as_text, describe
        from tidemq.pipeline.lake.status import status as status_of

        storage, kind = storage_of(storage_options), format_of(table_format, catalog)
        states = describe(url, stream, token_file, cafile)
        found = status_of(Lake(stream=stream, tables=tables, storage=storage, format=kind), states)
        print("\n".join(json.dumps(as_row(each)) for each in found) if as_json else as_text(found))
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def reconcile(
    places: Annotated[
        list[str],
        typer.Argument(metavar="DUMP... OUT", help="Of `tidemq store dump --arrow`; a folder to be made."),
    ],
    master: Master = "local[*]",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there, too, as JSON.")
    ] = None,
) -> None:
    """Make the queues of a split cluster one, from dumps of its nodes; `tidemq store restore` takes OUT.

    Driver and executors must reach all of these folders or URIs.
    """
    try:
        from tidemq.pipeline.reconcile.dumps import check_dumps
        from tidemq.pipeline.reconcile.dumps import reconcile as merge
        from tidemq.pipeline.spark.session import spark_session

        *dumps, out = places
        check_dumps(dumps)  # before Spark takes its time
        with spark_session(master, "tidemq reconcile") as spark:
            found = merge(spark, dumps, out)
        print(found.to_text())
        if report:
            report.write_text(found.to_json() + "\n")
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def alerts(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    url: Url,
    mqtt: Annotated[
        str, typer.Option(metavar="URL", help="Of the broker that gets the alerts: mqtt://host.")
    ],
    rules: Annotated[Path, typer.Option(metavar="FILE", help="TOML with rules for alerts.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Folder or URI of the checkpoint, which all executors reach.")
    ],
    user: User = None,
    password_file: PasswordFile = None,
    cafile: CaFile = "",
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = "",
    master: Master = "local[*]",
    start: Annotated[
        str, typer.Option(help="Where to begin: latest, earliest, an offset, a time with its zone.")
    ] = "latest",
    handover: Annotated[
        str, typer.Option(metavar="DIR", help="Of `backtest`: begin where that ended, with what it knows.")
    ] = "",
    allow_data_loss: AllowDataLoss = False,
    rows_max: RowsMax = 1_000_000,
    trigger: Trigger = 1.0,
    partitions: Annotated[
        int, typer.Option(min=1, help="Tasks of a batch; a checkpoint keeps what it began with.")
    ] = 2,
    storage_options: StorageFile = None,
) -> None:
    """Watch a stream by rules, and publish alerts over MQTT, each when it is raised and when it is cleared.

    Continues where the last run stopped, also when that was killed.
    """
    try:
        from tidemq.pipeline.alerts.alert_rules import load_alert_rules
        from tidemq.pipeline.alerts.watching import Alerts, run_alerts
        from tidemq.pipeline.spark.session import spark_session

        job = Alerts(
            url=url,
            token_file=token_file,
            cafile=cafile,
            stream=stream,
            mqtt=target_of(mqtt, user, password_file, cafile or None, cert, key),
            rules=load_alert_rules(rules),
            checkpoint=checkpoint,
            start=start,
            handover=handover,
            fail_on_data_loss=not allow_data_loss,
            rows_max=rows_max,
            trigger_s=trigger,
            partitions=partitions,
            storage=storage_of(storage_options),
        )
        job.check()  # before Spark takes its time
        with spark_session(master, f"tidemq alerts {stream}", job.storage.of_spark) as spark:
            run_alerts(spark, job)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def backtest(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI, as ingest has it.")],
    rules: Annotated[Path, typer.Option(metavar="FILE", help="TOML with rules for alerts.")],
    start: Annotated[
        str, typer.Option("--from", help="The first message: earliest, an offset, a time with its zone.")
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", help="Before which message to end: latest, an offset, a time.")
    ] = "latest",
    handover: Annotated[
        str, typer.Option(metavar="DIR", help="Folder or URI to be made, with which `alerts` can go on.")
    ] = "",
    master: Master = "local[*]",
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
) -> None:
    """Show which alerts rules would have raised and cleared in messages that bronze has, as lines of JSON.

    Needs no broker.
    """
    try:
        from tidemq.pipeline.alerts.alert_rules import load_alert_rules
        from tidemq.pipeline.alerts.watching import content_of
        from tidemq.pipeline.backtest import Backtest, run_backtest
        from tidemq.pipeline.lake.plan import Lake
        from tidemq.pipeline.sources.stream_options import Position
        from tidemq.pipeline.spark.session import spark_session

        storage, kind = storage_of(storage_options), format_of(table_format, catalog)
        job = Backtest(
            lake=Lake(stream=stream, tables=tables, storage=storage, format=kind),
            rules=load_alert_rules(rules),
            start=Position.parse("--from", start),
            end=Position.parse("--to", end),
            handover=handover,
        )
        job.check()  # before Spark takes its time
        with spark_session(master, f"tidemq backtest {stream}") as spark:
            done = run_backtest(spark, job, lambda rule, row: print(json.dumps(content_of(rule, row))))
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)
    text = (
        f"{done.alerts:,} alerts in {done.messages:,} messages, of which {done.unreadable:,} cannot be read"
    )
    print(f"{text}; the next offset is {done.next_offset}", file=sys.stderr)


@app.command()
def bench(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS... OUT", help="Of `tidemq bench --out`, or Parquet files of samples; a folder."
        ),
    ],
    master: Master = "local[*]",
) -> None:
    """Make tables and plots of results of load tests, of many runs and brokers, with exact percentiles.

    OUT is a folder of this machine; RESULTS are folders or URIs that all executors reach.
    """
    try:
        from tidemq.pipeline.load_results import summarise
        from tidemq.pipeline.spark.session import spark_session

        *results, out = places
        if not results:
            raise UsageError("accepted: results, and behind them the folder to write to")
        with spark_session(master, "tidemq bench") as spark:
            tables = summarise(spark, results, Path(out))
        print(tables.to_text())
        print(f"written: {out}/index.html, pictures and tables beside it")
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def replay(
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="Of the broker to publish to: mqtt://[user:password@]host[:port]."),
    ],
    source: Annotated[
        str, typer.Argument(metavar="[SOURCE]", help="A Delta Lake table as bronze is, or Parquet files.")
    ] = "",
    stream: Annotated[str, typer.Option(metavar="NAME", help="Of a stream, in place of SOURCE.")] = "",
    admin_url: Annotated[
        str,
        typer.Option(
            envvar="TIDEMQ_ADMIN_URL", metavar="URL", help="Of the admin listener that has the stream."
        ),
    ] = "http://127.0.0.1:18083",
    token_file: TokenFile = "",
    pace: Annotated[float, typer.Option(help="1: as it was; 2: twice as fast; 0: as fast as it goes.")] = 1.0,
    start: Annotated[str, typer.Option(help="Where to begin: earliest, an offset, a time.")] = "earliest",
    end: Annotated[str, typer.Option(help="Where to end: latest, an offset, a time.")] = "latest",
    topic_prefix: Annotated[str, typer.Option(metavar="TEXT", help="Put before each topic.")] = "",
    time_property: Annotated[
        str, typer.Option(metavar="NAME", help="User property with the publisher's time, to pace by.")
    ] = "",
    user: User = None,
    password_file: PasswordFile = None,
    cafile: CaFile = "",
    cert: Cert = None,
    key: Key = None,
    master: Master = "local[*]",
    storage_options: StorageFile = None,
    table_format: Format = "delta",
    catalog: CatalogFile = None,
) -> None:
    """Publish stored messages again: a table's, by Spark, or a stream's, without it. In their order;
    at the pace at which they came, or another.
    """
    try:
        from tidemq.client.streams import find_token, read_cafile
        from tidemq.pipeline.lake.table import Table
        from tidemq.pipeline.replay import Replay, replay, stream_batches, table_batches
        from tidemq.pipeline.sources.stream_options import Position
        from tidemq.pipeline.spark.session import spark_session

        target = target_of(url, user, password_file, cafile or None, cert, key)
        job = Replay(target, pace, topic_prefix, time_property)
        bounds = Position.parse("start", start), Position.parse("end", end)
        if bool(source) == bool(stream):
            raise UsageError("give a SOURCE, or a stream by --stream")
        with _shown() as show, ExitStack() as opened:
            if stream:
                token, cadata = find_token(token_file), read_cafile(cafile)
                batches = stream_batches(admin_url, stream, *bounds, token=token, cadata=cadata)
            else:
                spark = opened.enter_context(spark_session(master, f"tidemq replay {source}"))
                table = Table(source, storage_of(storage_options), format_of(table_format, catalog))
                batches = table_batches(spark, table, *bounds)
            outcome = replay(batches, job, show)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)
    text = f"{outcome.messages:,} messages in {outcome.seconds:.1f} s"
    if pace:
        text += f", late by {outcome.late_p50_s * 1e3:.1f} ms (p50), {outcome.late_p99_s * 1e3:.1f} ms (p99)"
    print(text)


@contextmanager
def _logged() -> Iterator[None]:
    """What a job does, as lines on the standard error output."""
    log, handler = logging.getLogger("tidemq"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def _shown() -> Iterator[Callable[[int, float], None] | None]:
    """How a replay goes on, on a terminal; nothing where there is none."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    with console.status("reading") as status:
        yield lambda count, late_s: status.update(f"{count:,} messages, {late_s * 1e3:,.1f} ms late")


@app.command()
def doctor(
    stream: Annotated[str, typer.Argument(metavar="[STREAM]", help="A stream to be looked for.")] = "",
    url: Url = "",
    token_file: TokenFile = "",
    cafile: CaFile = "",
    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Start Spark there, and have its executors look.")
    ] = "",
) -> None:
    """Look at what jobs need: Java, packages; with --url, the broker; with --master, Spark's executors."""
    try:
        from tidemq.pipeline.spark.doctor import examine
    except ImportError as error:
        _fail(error)
    healthy = True
    for finding in examine(url, stream, master, token_file=token_file, cafile=cafile):
        print(f"{'ok ' if finding.good else 'BAD'} {finding.subject}: {finding.text}", flush=True)
        healthy &= finding.good
    raise typer.Exit(0 if healthy else EXIT_FAILED)


def _fail(error: Exception) -> NoReturn:
    """One line, and code 1."""
    from tidemq.pipeline.places import in_one_line

    hint = "; pip install 'tidemq[pipeline]'" if isinstance(error, ImportError) else ""
    print(f"tidemq: {in_one_line(str(error))}{hint}", file=sys.stderr)
    raise typer.Exit(EXIT_FAILED)
