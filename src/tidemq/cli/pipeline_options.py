"""Options that several commands of `tidemq pipeline` have, or that are long; and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidemq.pipeline.lake.table_log import TableFormat
    from tidemq.pipeline.places import Storage
    from tidemq.pipeline.sources.mqtt_target import Target

Url = Annotated[str, typer.Option(metavar="URL", help="The broker's admin listener, as executors reach it.")]
Urls = Annotated[
    str,
    typer.Option(
        metavar="URL[,URL...]",
        help="The broker's admin listener, as executors reach it; of several nodes those of all.",
    ),
]
Nodes = Annotated[
    bool, typer.Option("--nodes", help="Go on with what was several nodes, also where --url is one.")
]
FailOnUnreachable = Annotated[
    bool,
    typer.Option("--fail-on-unreachable", help="Fail when one of several nodes is away, and not all alone."),
]
TokenFile = Annotated[
    str,
    typer.Option(
        envvar="TIDEMQ_ADMIN_TOKEN_FILE",
        metavar="FILE",
        help="File with its token, on the driver; or set TIDEMQ_ADMIN_TOKEN.",
    ),
]
Master = Annotated[
    str, typer.Option(metavar="MASTER", help="Spark's: local[*], spark://host:7077, yarn, k8s://host.")
]
AllowDataLoss = Annotated[
    bool, typer.Option("--allow-data-loss", help="Go on when messages have expired, and say so.")
]
User = Annotated[str | None, typer.Option(metavar="NAME", help="User name at the MQTT broker.")]
PasswordFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="File with the user's password at the MQTT broker.")
]
CaFile = Annotated[
    str, typer.Option(metavar="FILE", help="Certificates that are trusted in place of the system's.")
]
Cert = Annotated[str | None, typer.Option(metavar="FILE", help="Own certificate for the MQTT broker.")]
Key = Annotated[str | None, typer.Option(metavar="FILE", help="Its private key, if --cert does not have it.")]
PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML with streams, rules, alerts, sinks and maintenance.")
]
RulesFile = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML with rules that decode payloads.")]
RowsMax = Annotated[int, typer.Option(min=1, help="Messages of a batch.")]
Trigger = Annotated[float, typer.Option(min=0.0, help="Seconds between the beginnings of batches.")]


BatchBytesMax = Annotated[
    int, typer.Option(min=0, help="Bytes of a batch, on the broker's disk, in place of --rows-max.")
]
MetricsPort = Annotated[
    int | None, typer.Option(metavar="PORT", help="Answer GET /metrics for Prometheus there.")
]
BytesMax = Annotated[
    int, typer.Option(min=1, help="Bytes of messages that a task holds before it writes them.")
]
MaintainBatches = Annotated[
    int, typer.Option(min=0, help="Do what `maintain` does every N batches; 0: never.")
]
Checkpoint = Annotated[
    str, typer.Option(metavar="DIR", help="Folder or URI of Spark's checkpoint; none: beside the tables.")
]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="Of the tables: delta, or iceberg.")]
CatalogFile = Annotated[
    Path | None,
    typer.Option(
        "--catalog",
        metavar="FILE",
        help="TOML with Iceberg's catalogue, in pyiceberg's properties; none: TABLES/catalog.db.",
    ),
]
StorageFile = Annotated[
    Path | None,
    typer.Option(
        "--storage-options",
        metavar="FILE",
        help="TOML with credentials for object stores; none: the environment's.",
    ),
]


def storage_of(file: Path | None) -> Storage:
    """Of `--storage-options`."""
    from tidemq.pipeline.places import ENVIRONMENT, Storage

    return Storage.load(file) if file else ENVIRONMENT


def format_of(name: str, catalog: Path | None) -> TableFormat:
    """Of `--format` and `--catalog`."""
    from tidemq.pipeline.lake.formats import load_format

    return load_format(name, catalog)


def target_of(url: str, *options: str | None) -> Target:
    """Where to publish, and as whom: user, password file, trusted certificates, own certificate and key."""
    from tidemq.pipeline.sources.mqtt_target import Target

    names = ("user", "passwordFile", "cafile", "cert", "key")
    given = {name: value for name, value in zip(names, options, strict=True) if value is not None}
    return Target.parse({"url": url, **given})
