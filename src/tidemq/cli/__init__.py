"""The command `tidemq`. A command imports the parts it needs when it runs, so that each starts quickly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tidemq.cli.acl import app as acl_app
from tidemq.cli.bench import EXIT_USAGE
from tidemq.cli.bench import app as bench_app
from tidemq.cli.options import EXIT_FAILED
from tidemq.cli.passwd import passwd
from tidemq.cli.pipeline import app as pipeline_app
from tidemq.cli.property_flags import join_properties
from tidemq.cli.pub import pub
from tidemq.cli.store import app as store_app
from tidemq.cli.stream import app as stream_app
from tidemq.cli.sub import sub

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import tidemq

        print(f"tidemq {tidemq.__version__}")
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """An MQTT 3.1, 3.1.1 and 5.0 broker, a publisher and a subscriber to try it with, tools for its store and
    for load tests."""


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(envvar="TIDEMQ_CONFIG", metavar="FILE", help="TOML file to read.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 0.0.0.0]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one. [default: 1883]")] = None,
    reactors: Annotated[int | None, typer.Option(help="Event loops; 0: one per core. [default: 0]")] = None,
    store: Annotated[str | None, typer.Option(help="rocksdb, sqlite or memory. [default: rocksdb]")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of stores with files.")] = None,
    durability: Annotated[
        str | None, typer.Option(help="When a commit is on the disk: sync, interval or os. [default: sync]")
    ] = None,
    store_strict: Annotated[
        bool | None, typer.Option("--store-strict", help="Refuse to start on damaged data.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: info]")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port of the admin listener, HTTP; 0: off. [default: 0]")
    ] = None,
) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Every flag may also stand in the file, or in the environment as TIDEMQ_PORT and so on. A flag goes before
    the environment, the environment before the file.
    """
    from tidemq.cli.serve import run_broker

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


app.command()(pub)
app.command()(sub)
app.command()(passwd)
app.add_typer(acl_app, name="acl")
app.add_typer(store_app, name="store")
app.add_typer(bench_app, name="bench")
app.add_typer(stream_app, name="stream")
app.add_typer(pipeline_app, name="pipeline")


def main() -> None:
    """The entry point of the command. Wrong usage exits with 2, of which systemd knows that another try does
    not help; of `pub` and `sub` with 1, as mosquitto's commands do.
    """
    try:
        code = app(join_properties(sys.argv[1:]), prog_name="tidemq", standalone_mode=False)
    except TyperException as error:
        print(f"Error: {error.format_message()}\nUse 'tidemq COMMAND --help' to see usage.", file=sys.stderr)
        code = EXIT_FAILED if sys.argv[1:2] in (["pub"], ["sub"]) else EXIT_USAGE
    sys.exit(code)
