"""`tidemq top`: who publishes, who is slow, who loses messages, now; asked of the admin API alone."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from tidemq.cli.admin_request import DEFAULT_URL, Api, CaFile, TokenFile, Url, exit_with, show_table

_CLEAR = "\x1b[2J\x1b[H"


def top(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    cafile: CaFile = "",
    interval_s: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds between looks.")] = 2.0,
    rows: Annotated[int, typer.Option(min=1, max=100, help="Clients of each list.")] = 10,
    clients_max: Annotated[int, typer.Option(min=1, help="Clients that are looked at.")] = 20_000,
    count: Annotated[int, typer.Option(min=0, help="Looks, then it ends; 0: until Ctrl-C.")] = 0,
) -> None:
    """Show who publishes most, who is slow, and who loses messages, until Ctrl-C.

    Of a broker with more clients than --clients-max some are not looked at; it says so.
    """

    def run() -> None:
        api, shown = Api(url, token_file, cafile), 0
        before, before_s = _look(api, clients_max), time.monotonic()
        while not count or shown < count:
            time.sleep(interval_s)
            now, now_s = _look(api, clients_max), time.monotonic()
            drops = api.ask("GET", "/api/v1/drops", {"limit": rows})["drops"]
            if sys.stdout.isatty():
                print(_CLEAR, end="")
            _show(before, now, now_s - before_s, drops, rows, clients_max)
            before, before_s, shown = now, now_s, shown + 1

    exit_with(run)


def _look(api: Api, clients_max: int) -> dict[str, dict[str, Any]]:
    found = api.pages("/api/v1/clients", "clients", {}, clients_max)
    return {each["client_id"]: each for each in found}


def _show(
    before: dict[str, dict[str, Any]],
    now: dict[str, dict[str, Any]],
    seconds: float,
    drops: list[dict[str, Any]],
    rows: int,
    clients_max: int,
) -> None:
    here = sum(each["connected"] for each in now.values())
    more = ", and more" if len(now) >= clients_max else ""
    print(f"{time.strftime('%H:%M:%S')}  {here} clients, {len(now) - here} sessions away{more}\n")
    rates = {
        name: _grown(before.get(name), each, "messages_received") / seconds for name, each in now.items()
    }
    busy = sorted((name for name in rates if rates[name] > 0), key=lambda name: -rates[name])[:rows]
    show_table(
        ["publishes", "messages/s", "bytes/s", "address"],
        [
            [
                name,
                rates[name],
                _grown(before.get(name), now[name], "bytes_received") / seconds,
                now[name]["address"],
            ]
            for name in busy
        ],
    )
    waiting = sorted(
        (each for each in now.values() if each["queued_messages"] or each["slow"] or each["paused"]),
        key=lambda each: (-each["slow"], -each["queued_messages"]),
    )[:rows]
    print()
    show_table(
        ["is behind", "waiting", "oldest_s", "unread_bytes", "slow", "paused", "connected"],
        [
            [
                each["client_id"],
                each["queued_messages"],
                each["oldest_queued_s"],
                each["output_bytes"],
                each["slow"],
                each["paused"],
                each["connected"],
            ]
            for each in waiting
        ],
    )
    print()
    show_table(
        ["has lost", "messages", "cause", "last"],
        [[each["client_id"], each["messages"], each["cause"], each["last"]] for each in drops],
    )


def _grown(before: dict[str, Any] | None, now: dict[str, Any], name: str) -> float:
    """How much a figure of a connection has grown; that of a new connection begins at 0."""
    value = now[name]
    if value is None:
        return 0.0
    same = before is not None and before["connected_since"] == now["connected_since"]
    return float(value - (before[name] or 0)) if before is not None and same else float(value)
