"""`tidemq config`: what a configuration says, and one of Mosquitto's as one of ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.cli.serve import takes_options
from tidemq.errors import TideMQError

EXIT_REFUSED = 3  # of `import --strict`

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def describe() -> None:
    """Check a configuration, or bring one along from Mosquitto."""


@app.command()
@takes_options
def check(
    file: Annotated[Path | None, typer.Argument(envvar="TIDEMQ_CONFIG", metavar="[FILE]")] = None,
    *,
    flags: Mapping[str, object],
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

    try:
        config = load_config(file, flags)
        for value in list_values(config, file, flags):
            print(f"{value.key} = {value.text}  # {value.origin}")
        asyncio.run(check_files(config))
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None


@app.command("import")
def import_mosquitto(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF")],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory to be made, or an empty one.")
    ] = Path("tidemq"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="mosquitto.db of the Mosquitto, which has stopped."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing where something cannot be taken.")
    ] = False,
) -> None:
    """Write a directory with which `tidemq serve --config DIR/tidemq.toml` takes over from Mosquitto 2:
    configuration, users, rules, bridges, and with --data sessions, subscriptions, queued and retained
    messages.

    A report says of each line of MOSQUITTO.CONF, and of its included files, whether it was taken, changed in
    meaning, or not taken, and why; it is in DIR/report.txt, too. Relative paths in the file are taken from
    here. Exits with 3 where --strict refuses, and with 1 where a file cannot be read or DIR is not empty.
    """
    from tidemq.migration.importing import CONFIG, plan_import, write_import
    from tidemq.migration.stored import read_state

    try:
        state = None if data is None else read_state(data)
        planned = plan_import(file, output, state)
        refused = planned.report.of("not taken")
        if not (strict and refused):
            write_import(planned, state)
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
    for line in planned.report.lines():
        print(line)
    if strict and refused:
        print(f"tidemq: {len(refused)} cannot be taken, and nothing is written (--strict)", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED)
    print(f"Next: tidemq config check {output / CONFIG}")
