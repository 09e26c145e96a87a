"""`tidemq serve`: the broker's options; `serving` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="Address to listen on. [default: 0.0.0.0]")]
Port = Annotated[int | None, typer.Option(help="Port; 0 picks a free one. [default: 1883]")]
Reactors = Annotated[int | None, typer.Option(help="Event loops; 0: one per core. [default: 0]")]
StoreName = Annotated[str | None, typer.Option(help="rocksdb, sqlite or memory. [default: rocksdb]")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of stores with files.")]
Durability = Annotated[
    str | None, typer.Option(help="When a commit is on the disk: sync, interval or os. [default: sync]")
]
StoreStrict = Annotated[bool | None, typer.Option("--store-strict", help="Refuse to start on damaged data.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")]
AdminPort = Annotated[
    int | None, typer.Option(help="Port of the admin listener and dashboard, HTTP; 0: off.")
]


def serve(
    config: Annotated[
        Path | None, typer.Option(envvar="TIDEMQ_CONFIG", metavar="FILE", help="TOML file to read.")
    ] = None,
    host: Host = None,
    port: Port = None,
    reactors: Reactors = None,
    store: StoreName = None,
    data: Data = None,
    durability: Durability = None,
    store_strict: StoreStrict = None,
    log_level: LogLevel = None,
    admin_port: AdminPort = None,
) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Every flag may also stand in the file, or in the environment as TIDEMQ_PORT and so on. A flag goes before
    the environment, the environment before the file.
    """
    from tidemq.cli.serving import run_broker

    flags = {
        "host": host,
        "port": port,
        "reactors": reactors,
        "store": store,
        "data": data,
        "durability": durability,
        "store_strict": store_strict,
        "log_level": log_level,
        "admin_port": admin_port,
    }
    raise typer.Exit(run_broker(config, flags))
