"""The command `tidemq`. Only the command that is called is imported, and that imports what it needs when it
runs, so that each starts quickly.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tidemq.cli.exit_codes import EXIT_FAILED, EXIT_USAGE

# Each in the module of its name.
_COMMANDS = ("serve", "pub", "sub", "passwd", "top", "trace")
_GROUPS = ("admin", "acl", "config", "store", "bench", "stream", "pipeline", "cluster")


def make_app(called: str = "") -> typer.Typer:
    """The command with all commands; if `called` is the name of one, with no other."""
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)
    app.callback()(describe)
    known = called in (*_COMMANDS, *_GROUPS)
    for name in _COMMANDS:
        if not known or called == name:
            app.command()(getattr(import_module(f"tidemq.cli.{name}"), name))
    for name in _GROUPS:
        if not known or called == name:
            app.add_typer(import_module(f"tidemq.cli.{name}").app, name=name)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        _print_version()
        raise typer.Exit


def _print_version() -> None:
    import tidemq

    print(f"tidemq {tidemq.__version__}")


def describe(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """An MQTT 3.1, 3.1.1 and 5.0 broker, a publisher and a subscriber to try it with, tools for its store and
    for load tests."""


def _called(words: list[str]) -> str:
    """The command's name. A shell that completes a line gives the line in the environment, and no words."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = words or line.split()[1:]
    return words[0] if words else ""


def main() -> None:
    """The entry point of the command. Wrong usage exits with 2, of which systemd knows that another try does
    not help; of `pub` and `sub` with 1, as mosquitto's commands do.
    """
    words = sys.argv[1:]
    if words == ["--version"]:  # no command is needed for it
        _print_version()
        return
    called = _called(words)
    if called in ("pub", "sub"):
        from tidemq.cli.property_flags import join_properties

        words = join_properties(words)
    try:
        code = make_app(called)(words, prog_name="tidemq", standalone_mode=False)
    except TyperException as error:
        print(f"Error: {error.format_message()}\nUse 'tidemq COMMAND --help' to see usage.", file=sys.stderr)
        code = EXIT_FAILED if called in ("pub", "sub") else EXIT_USAGE
    except typer.Abort:  # a question was answered by nobody, or by Ctrl+C
        print("\nError: nothing was done, for nobody has said yes", file=sys.stderr)
        code = EXIT_FAILED
    sys.exit(code)
