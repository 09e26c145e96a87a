"""`tidemq trace`: what one client sends and gets, in words; asked of the admin API."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidemq.cli.admin_request import DEFAULT_URL, Api, CaFile, TokenFile, Url, exit_with, printable
from tidemq.errors import UsageError

_ARROWS = {"in": "->", "out": "<-", "end": "--"}


def trace(
    client: Annotated[str, typer.Option(metavar="ID", help="A client identifier.")] = "",
    address: Annotated[str, typer.Option(metavar="IP", help="All clients at this address.")] = "",
    topic: Annotated[str, typer.Option(metavar="FILTER", help="Messages on a topic filter.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long.")] = 60.0,
    max_lines: Annotated[int, typer.Option(min=1, max=100_000, help="How many packets at most.")] = 1000,
    payload: Annotated[bool, typer.Option("--payload", help="Show payloads, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each packet.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    cafile: CaFile = "",
) -> None:
    """Show the packets that a client sends (->) and gets (<-), also before it is let in; or the messages on a
    topic filter. Passwords are never shown, payloads only with --payload.
    """

    def run() -> None:
        if sum(map(bool, (client, address, topic))) != 1:
            raise UsageError("give one of --client, --address, --topic")
        query = {
            "client_id": client,
            "address": address,
            "topic_filter": topic,
            "seconds": seconds,
            "lines_max": max_lines,
            "payload": str(payload).lower(),
        }
        for line in Api(url, token_file, cafile).events("/api/v1/trace", query):
            if as_json:
                print(json.dumps(line), flush=True)
                continue
            at = line["at"][11:23]
            who = f"{line['client_id'] or '-'} ({line['address'] or '-'})"
            print(printable(f"{at} {who} {_ARROWS[line['direction']]} {line['packet']}"), flush=True)

    exit_with(run)
