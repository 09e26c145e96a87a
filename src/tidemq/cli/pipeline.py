"""`tidemq pipeline`: from a broker's streams into tables and alerts, on Spark.

Spark is imported when a command runs, so that other commands start quickly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemq.cli.options import EXIT_FAILED
from tidemq.errors import TideMQError

app = typer.Typer(
    help="Bring streams into tables with Spark (pip install 'tidemq[pipeline]').",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Url = Annotated[
    str, typer.Option(metavar="URL", help="Of the broker's admin listener, as executors reach it.")
]
Master = Annotated[
    str, typer.Option(metavar="MASTER", help="Spark's: local[*], spark://host:7077, yarn, k8s://host.")
]
AllowDataLoss = Annotated[
    bool, typer.Option("--allow-data-loss", help="Go on when messages have expired, and say so.")
]
RowsMax = Annotated[int, typer.Option(min=1, help="Messages of a batch.")]
Trigger = Annotated[float, typer.Option(min=0.0, help="Seconds between the beginnings of batches.")]


@app.command()
def ingest(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")],
    tables: Annotated[str, typer.Argument(metavar="TABLES", help="Folder or URI that all executors reach.")],
    url: Url,
    master: Master = "local[*]",
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with rules that decode payloads.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End with the last message of now.")] = False,
    start: Annotated[
        str, typer.Option(help="Where to begin: earliest, latest, an offset, a time with its zone.")
    ] = "earliest",
    allow_data_loss: AllowDataLoss = False,
    rows_max: RowsMax = 1_000_000,
    trigger: Trigger = 1.0,
) -> None:
    """Bring a stream into TABLES/STREAM/bronze, a Delta Lake table, each message once; with --rules, decoded
    into TABLES/STREAM/silver/RULE, and what cannot be into TABLES/STREAM/dead_letters.

    Goes on where it, or a run that was killed, has ended.
    """
    try:
        from tidemq.pipeline.ingest import Ingest, run_ingest
        from tidemq.pipeline.rules import load_rules
        from tidemq.pipeline.session import spark_session

        job = Ingest(
            url=url,
            stream=stream,
            tables=tables,
            start=start,
            fail_on_data_loss=not allow_data_loss,
            rows_max=rows_max,
            trigger_s=trigger,
            rules=load_rules(rules) if rules else (),
        )
        with spark_session(master, f"tidemq ingest {stream}") as spark:
            run_ingest(spark, job, once=once)
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
        str, typer.Option(metavar="DIR", help="Folder or URI for what is known, which all executors reach.")
    ],
    master: Master = "local[*]",
    start: Annotated[
        str, typer.Option(help="Where to begin: latest, earliest, an offset, a time with its zone.")
    ] = "latest",
    allow_data_loss: AllowDataLoss = False,
    rows_max: RowsMax = 1_000_000,
    trigger: Trigger = 1.0,
    partitions: Annotated[
        int, typer.Option(min=1, help="Tasks of a batch; a checkpoint keeps what it began with.")
    ] = 2,
) -> None:
    """Watch a stream by rules, and publish alerts over MQTT, each when it is raised and when it is cleared.

    Goes on where it, or a run that was killed, has ended.
    """
    try:
        from tidemq.pipeline.alert_rules import load_alert_rules
        from tidemq.pipeline.alerts import Alerts, run_alerts
        from tidemq.pipeline.session import spark_session

        job = Alerts(
            url=url,
            stream=stream,
            mqtt=mqtt,
            rules=load_alert_rules(rules),
            checkpoint=checkpoint,
            start=start,
            fail_on_data_loss=not allow_data_loss,
            rows_max=rows_max,
            trigger_s=trigger,
            partitions=partitions,
        )
        with spark_session(master, f"tidemq alerts {stream}") as spark:
            run_alerts(spark, job)
    except (TideMQError, ImportError, OSError) as error:
        _fail(error)


@app.command()
def doctor(
    stream: Annotated[str, typer.Argument(metavar="[STREAM]", help="A stream to be looked for.")] = "",
    url: Url = "",
    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Start Spark there, and have its executors look.")
    ] = "",
) -> None:
    """Look at what jobs need: Java, packages; with --url, the broker; with --master, Spark's executors."""
    try:
        from tidemq.pipeline.doctor import examine
    except ImportError as error:
        _fail(error)
    healthy = True
    for finding in examine(url, stream, master):
        print(f"{'ok ' if finding.good else 'BAD'} {finding.subject}: {finding.text}", flush=True)
        healthy &= finding.good
    raise typer.Exit(0 if healthy else EXIT_FAILED)


def _fail(error: Exception) -> None:
    """One line, and code 1."""
    hint = "; pip install 'tidemq[pipeline]'" if isinstance(error, ImportError) else ""
    print(f"tidemq: {error}{hint}", file=sys.stderr)
    raise typer.Exit(EXIT_FAILED)
