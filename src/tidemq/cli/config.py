"""`tidemq config`: what a configuration says, and whether it is right."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.cli.serve import (
    AdminPort,
    Data,
    Durability,
    Host,
    LogLevel,
    Port,
    Reactors,
    StoreName,
    StoreStrict,
)
from tidemq.errors import TideMQError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def describe() -> None:
    """Check a configuration."""


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(envvar="TIDEMQ_CONFIG", metavar="[FILE]")] = None,
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
    """Read FILE, the environment and the flags as `tidemq serve` does, with all files that they name, and
    print each value in force with where it came from. Secrets are not shown. Exits with 1 where `tidemq
    serve` would not start with it, and says why.

    Nothing is bound, opened or asked: a port that somebody has, a damaged store or a server that does not
    answer is not found.
    """
    from tidemq.broker.preflight import check_files
    from tidemq.config import load_config
    from tidemq.origins import list_values

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
    try:
        config = load_config(file, flags)
        for value in list_values(config, file, flags):
            print(f"{value.key} = {value.text}  # {value.origin}")
        asyncio.run(check_files(config))
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
