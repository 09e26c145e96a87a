"""Options that several commands of `tidemq pipeline` have, or that are long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str, typer.Option(metavar="URL", help="The broker's admin listener, as executors reach it.")]
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
RowsMax = Annotated[int, typer.Option(min=1, help="Messages of a batch.")]
Trigger = Annotated[float, typer.Option(min=0.0, help="Seconds between the beginnings of batches.")]


BytesMax = Annotated[
    int, typer.Option(min=1, help="Bytes of messages that a task holds before it writes them.")
]
MaintainBatches = Annotated[
    int, typer.Option(min=0, help="Do what `maintain` does every N batches; 0: never.")
]
Checkpoint = Annotated[
    str, typer.Option(metavar="DIR", help="Folder or URI of Spark's checkpoint; none: beside the tables.")
]
StorageFile = Annotated[
    Path | None,
    typer.Option(
        "--storage-options",
        metavar="FILE",
        help="TOML with credentials for object stores; none: the environment's.",
    ),
]
