"""`tidemq passwd`: users and passwords in the file that the authenticator `password_file` reads."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.errors import TideMQError, UsageError


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Made where it is missing, with mode 0600.")],
    user: Annotated[str, typer.Argument(metavar="USER")],
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Take the user out.")] = False,
    scram: Annotated[
        bool, typer.Option("--scram", help="For SCRAM-SHA-256: clients need not send the password.")
    ] = False,
    iterations: Annotated[
        int | None,
        typer.Option(help="SCRAM iterations, at least 4096. Fewer cost clients and attackers less."),
    ] = None,
) -> None:
    """Give a user a password, or another one; asked for on a terminal, else the first line of standard input.

    A broker that runs with the file notices within a second.
    """
    from tidemq.broker.authenticators.password_file import change_password_file
    from tidemq.broker.authenticators.scram import ITERATIONS

    try:
        if (delete and (scram or iterations is not None)) or (iterations is not None and not scram):
            raise UsageError("--iterations goes with --scram, and neither with --delete")
        password = None if delete else _ask(user)
        change_password_file(file, user, password, iterations or ITERATIONS if scram else None)
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None


def _ask(user: str) -> bytes:
    """The password; UsageError where it is empty, or not the same the second time."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {user}: ")
        if password != getpass.getpass("Once more: "):
            raise UsageError("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("the password is empty")
    return password.encode()
