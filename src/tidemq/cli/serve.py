"""`tidemq serve`, and its options; `serving` runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

# by key of the configuration; whoever starts a broker, or asks what it would start with, has them
OPTIONS: Mapping[str, Any] = {
    "host": Annotated[str | None, typer.Option(help="Address to listen on. [default: 0.0.0.0]")],
    "port": Annotated[int | None, typer.Option(help="Port; 0 picks a free one. [default: 1883]")],
    "reactors": Annotated[int | None, typer.Option(help="Event loops; 0: one per core. [default: 0]")],
    "store": Annotated[str | None, typer.Option(help="rocksdb, sqlite or memory. [default: rocksdb]")],
    "data": Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of stores with files.")],
    "durability": Annotated[
        str | None, typer.Option(help="When a commit is on the disk: sync, interval or os. [default: sync]")
    ],
    "store_strict": Annotated[
        bool | None, typer.Option("--store-strict", help="Refuse to start on damaged data.")
    ],
    "cluster_name": Annotated[str | None, typer.Option(help="Cluster whose node this broker is.")],
    "cluster_listen": Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where other nodes reach it. [127.0.0.1:4222]")
    ],
    "cluster_join": Annotated[
        list[str] | None, typer.Option("--join", metavar="HOST:PORT", help="Another node; may be repeated.")
    ],
    "cluster_password_file": Annotated[
        str | None, typer.Option(metavar="FILE", help="The password that all nodes have.")
    ],
    "nats_url": Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A nats-server that runs, in place of an own one.")
    ],
    "log_level": Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")],
    "admin_port": Annotated[
        int | None, typer.Option(help="Port of the admin listener and dashboard, HTTP; 0: off.")
    ],
}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `OPTIONS` in place of its parameter `flags`, which gets what was given, or None, by
    key.
    """
    own = inspect.signature(command, eval_str=True)

    @wraps(command)
    def call(**given: Any) -> None:
        flags = {key: given.pop(key) for key in OPTIONS}
        command(**given, flags=flags)

    parameters = [each for each in own.parameters.values() if each.name != "flags"]
    for key, kind in OPTIONS.items():
        parameters.append(inspect.Parameter(key, parameters[0].kind, default=None, annotation=kind))
    call.__annotations__ = {}
    call.__dict__["__signature__"] = own.replace(parameters=parameters)
    return call


@takes_options
def serve(
    config: Annotated[
        Path | None, typer.Option(envvar="TIDEMQ_CONFIG", metavar="FILE", help="TOML file to read.")
    ] = None,
    *,
    flags: Mapping[str, object],
) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Every flag may also stand in the file, or in the environment as TIDEMQ_PORT and so on. A flag goes before
    the environment, the environment before the file.
    """
    from tidemq.cli.serving import run_broker

    raise typer.Exit(run_broker(config, flags))
