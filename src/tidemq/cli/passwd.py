"""`tidemq passwd`: users and passwords in the file that the authenticator `password_file` reads."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemq.cli.options import EXIT_FAILED
from tidemq.errors import TideMQError, UsageError


def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Made where it is missing, with mode 0600.")],
    user: Annotated[str, typer.Argument(metavar="USER")],
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Take the user out.")] = False,
) -> None:
    """Give a user a password, or another one; asked for on a terminal, else the first line of standard input.

    A broker that runs with the file notices within a second.
    """
    from tidemq.broker.password_file import change_password_file

    try:
        change_password_file(file, user, None if delete else _ask(user))
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
