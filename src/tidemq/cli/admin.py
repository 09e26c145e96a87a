"""`tidemq admin`: what operators ask and do, over the admin API of a running broker (docs/admin.md)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidemq.cli.admin_request import (
    DEFAULT_URL,
    Api,
    CaFile,
    TokenFile,
    Url,
    exit_with,
    part,
    show_table,
)
from tidemq.errors import UsageError

API = "/api/v1"

app = typer.Typer(
    help="Look after a running broker, over its admin API.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="Client identifier.")]
Limit = Annotated[int, typer.Option(min=1, help="Rows at most.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


@app.callback()
def reach(
    context: typer.Context,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    cafile: CaFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print answers as JSON.")] = False,
) -> None:
    """Keeps what all commands need."""
    context.obj = (url, token_file, cafile, as_json)


def _api(context: typer.Context) -> Api:
    url, token_file, cafile, _ = context.obj
    return Api(url, token_file, cafile)


def _show(context: typer.Context, rows: list[Any], columns: dict[str, str]) -> None:
    """Rows as a table of these columns (headline by field), or as JSON."""
    if context.obj[3]:
        print(json.dumps(rows))
    else:
        show_table(list(columns.values()), [[row[name] for name in columns] for row in rows])


def _show_facts(context: typer.Context, answer: dict[str, Any]) -> None:
    if context.obj[3]:
        print(json.dumps(answer))
        return
    lists = {name: value for name, value in answer.items() if isinstance(value, list | dict)}
    show_table(["field", "value"], [[name, value] for name, value in answer.items() if name not in lists])
    for name, value in lists.items():
        print(f"{name}: {json.dumps(value)}")


@app.command()
def clients(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(help="How the identifier begins.")] = "",
    address: Annotated[str, typer.Option(help="Where the client is.")] = "",
    username: Annotated[str, typer.Option(help="Its user.")] = "",
    listener: Annotated[str, typer.Option(help="Name of its listener.")] = "",
    connected: Annotated[
        bool | None, typer.Option("--connected/--away", help="Only these. [default: both]")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List clients and sessions."""

    def run() -> None:
        query = {
            "prefix": prefix,
            "address": address,
            "username": username,
            "listener": listener,
            "connected": None if connected is None else str(connected).lower(),
        }
        rows = list(_api(context).pages(f"{API}/clients", "clients", query, limit))
        columns = {
            "client_id": "client",
            "connected": "connected",
            "username": "user",
            "address": "address",
            "queued_messages": "waiting",
            "oldest_queued_s": "oldest_s",
            "slow": "slow",
        }
        _show(context, rows, columns)

    exit_with(run)


@app.command()
def client(context: typer.Context, client_id: ClientId) -> None:
    """Show one client, its subscriptions, and why its last connection ended."""
    exit_with(lambda: _show_facts(context, _api(context).ask("GET", f"{API}/clients/{part(client_id)}")))


@app.command()
def disconnect(context: typer.Context, client_id: ClientId) -> None:
    """End a client's connection; its session stays."""
    exit_with(lambda: _show_facts(context, _api(context).ask("DELETE", f"{API}/clients/{part(client_id)}")))


@app.command()
def end_session(context: typer.Context, client_id: ClientId, yes: Yes = False) -> None:
    """End a session, with its subscriptions and messages."""

    def run() -> None:
        _confirm(yes, f"End the session of {client_id!r}, with all that waits for it?")
        _show_facts(context, _api(context).ask("DELETE", f"{API}/sessions/{part(client_id)}"))

    exit_with(run)


@app.command()
def queue(context: typer.Context, client_id: ClientId, limit: Limit = 20) -> None:
    """Show the messages that wait for a client, oldest first."""

    def run() -> None:
        rows = list(_pages_of_100(_api(context), f"{API}/queues/{part(client_id)}", limit))
        columns = {"topic": "topic", "payload": "payload", "payload_bytes": "bytes", "qos": "qos"}
        _show(context, rows, columns | {"at": "came", "place": "is"})

    exit_with(run)


def _pages_of_100(api: Api, path: str, limit: int) -> Any:
    cursor, left = None, limit
    while left > 0:
        page = api.ask("GET", path, {"limit": min(left, 100), "cursor": cursor})
        yield from page["messages"]
        left -= len(page["messages"])
        cursor = page["cursor"]
        if cursor is None:
            return


@app.command()
def purge(context: typer.Context, client_id: ClientId, yes: Yes = False) -> None:
    """Drop the messages that wait for a client."""

    def run() -> None:
        _confirm(yes, f"Drop the messages that wait for {client_id!r}?")
        _show_facts(context, _api(context).ask("DELETE", f"{API}/queues/{part(client_id)}"))

    exit_with(run)


@app.command()
def subscribers(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic name.")],
    limit: Limit = 100,
) -> None:
    """Say who would get a message on a topic."""

    def run() -> None:
        query = {"topic": topic}
        rows = list(_api(context).pages(f"{API}/subscriptions", "subscribers", query, limit))
        columns = {"client_id": "client", "kind": "kind", "topic_filter": "filter", "qos": "qos"}
        _show(context, rows, columns | {"connected": "connected"})

    exit_with(run)


@app.command()
def retained(
    context: typer.Context,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER")] = "#",
    limit: Limit = 100,
    clear: Annotated[bool, typer.Option("--clear", help="Remove those that match.")] = False,
    yes: Yes = False,
) -> None:
    """List retained messages, or remove them."""

    def run() -> None:
        api, query = _api(context), {"topic_filter": topic_filter}
        if clear:
            count = api.ask("GET", f"{API}/retained/count", query)["messages"]
            _confirm(yes, f"Remove {count} retained messages that match {topic_filter!r}?")
            _show_facts(context, api.ask("DELETE", f"{API}/retained", {**query, "messages_max": str(count)}))
            return
        rows = list(api.pages(f"{API}/retained", "messages", query, limit))
        columns = {"topic": "topic", "payload": "payload", "payload_bytes": "bytes", "at": "came"}
        _show(context, rows, columns)

    exit_with(run)


@app.command()
def publish(
    context: typer.Context,
    topic: Annotated[str, typer.Argument()],
    payload: Annotated[str, typer.Argument()] = "",
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2)] = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain")] = False,
) -> None:
    """Publish a message, past the rules."""

    def run() -> None:
        body = {"topic": topic, "payload": payload, "qos": qos, "retain": retain}
        _show_facts(context, _api(context).ask("POST", f"{API}/publish", body=body))

    exit_with(run)


@app.command()
def drops(context: typer.Context, limit: Limit = 100) -> None:
    """Say whose messages were dropped or refused, and why."""

    def run() -> None:
        rows = _api(context).ask("GET", f"{API}/drops", {"limit": limit})["drops"]
        columns = {"client_id": "client", "cause": "cause", "messages": "messages", "last": "last"}
        _show(context, rows, columns)

    exit_with(run)


@app.command()
def alarms(context: typer.Context) -> None:
    """List alarms: those that go on, then the last that ended."""

    def run() -> None:
        found = _api(context).ask("GET", "/alarms")
        columns = {"name": "alarm", "began": "began", "ended": "ended", "text": "text"}
        _show(context, found["active"] + found["ended"], columns)

    exit_with(run)


@app.command()
def bridges(context: typer.Context) -> None:
    """List the connections to other brokers, and how they are."""

    def run() -> None:
        rows = _api(context).ask("GET", f"{API}/bridges")["bridges"]
        columns = {
            "name": "name",
            "state": "state",
            "address": "address",
            "since": "since",
            "queued_messages": "waiting",
            "messages_out": "out",
            "messages_in": "in",
            "last_error": "last error",
        }
        _show(context, rows, columns)

    exit_with(run)


@app.command()
def bans(context: typer.Context) -> None:
    """List who may not connect."""

    def run() -> None:
        rows = _api(context).ask("GET", f"{API}/bans")["bans"]
        names = ("client_id", "username", "address", "reason", "by", "since", "until")
        _show(context, rows, dict(zip(names, names, strict=True)))

    exit_with(run)


WATCHED = {"topic_filter": "filter", "messages": "messages", "payload_bytes": "bytes", "since": "since"}


@app.command()
def watched(context: typer.Context) -> None:
    """Show how many messages there are on watched topic filters."""
    exit_with(lambda: _show(context, _api(context).ask("GET", f"{API}/watched-topics")["watched"], WATCHED))


@app.command()
def watch(context: typer.Context, topic_filter: Annotated[str, typer.Argument(metavar="FILTER")]) -> None:
    """Count messages on a topic filter, until the broker ends or `unwatch`."""

    def run() -> None:
        body = {"topic_filter": topic_filter}
        _show(context, _api(context).ask("POST", f"{API}/watched-topics", body=body)["watched"], WATCHED)

    exit_with(run)


@app.command()
def unwatch(context: typer.Context, topic_filter: Annotated[str, typer.Argument(metavar="FILTER")]) -> None:
    """Count messages on a topic filter no more."""

    def run() -> None:
        query = {"topic_filter": topic_filter}
        _show(context, _api(context).ask("DELETE", f"{API}/watched-topics", query)["watched"], WATCHED)

    exit_with(run)


WhoClient = Annotated[str, typer.Option("--client", metavar="ID", help="A client identifier.")]
WhoUser = Annotated[str, typer.Option("--username", metavar="NAME", help="A user name.")]
WhoAddress = Annotated[str, typer.Option("--address", metavar="ADDRESS", help="An address or a network.")]


@app.command()
def ban(
    context: typer.Context,
    client_id: WhoClient = "",
    username: WhoUser = "",
    address: WhoAddress = "",
    seconds: Annotated[float | None, typer.Option(help="How long. [default: until it is ended]")] = None,
    reason: Annotated[str, typer.Option(help="For other operators.")] = "",
) -> None:
    """Keep a client, user or address out."""

    def run() -> None:
        body = {**_whom(client_id, username, address), "reason": reason, "seconds": seconds}
        _show_facts(context, _api(context).ask("POST", f"{API}/bans", body=body))

    exit_with(run)


@app.command()
def unban(
    context: typer.Context, client_id: WhoClient = "", username: WhoUser = "", address: WhoAddress = ""
) -> None:
    """Let a client, user or address in again."""

    def run() -> None:
        whom = _whom(client_id, username, address)
        _show_facts(context, _api(context).ask("DELETE", f"{API}/bans", whom))

    exit_with(run)


def _whom(client_id: str, username: str, address: str) -> dict[str, str]:
    given = {"client_id": client_id, "username": username, "address": address}
    return {name: value for name, value in given.items() if value}


@app.command()
def limits(
    context: typer.Context,
    changes: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE...")] = None,
) -> None:
    """Show the limits in force, or change some until the broker ends."""

    def run() -> None:
        wanted = {}
        for change in changes or ():
            name, separator, value = change.partition("=")
            if not separator or not value.isdecimal():
                raise UsageError(f"{change!r}: accepted: NAME=VALUE, such as queued_messages_max=1000")
            wanted[name] = int(value)
        api = _api(context)
        answer = api.ask("PATCH", f"{API}/limits", body=wanted) if wanted else api.ask("GET", f"{API}/limits")
        alive = set(answer["changeable"])
        rows = [
            {"name": name, "value": value, "changeable": name in alive}
            for name, value in answer["limits"].items()
        ]
        _show(context, rows, {"name": "limit", "value": "value", "changeable": "changeable"})

    exit_with(run)


@app.command()
def log_level(
    context: typer.Context,
    area: Annotated[str, typer.Argument(help="all, access, clients, store, ...")] = "",
    level: Annotated[str, typer.Argument(help="debug, info, warning, error; default: as all others.")] = "",
) -> None:
    """Show how much is logged by area, or change it until the broker ends."""

    def run() -> None:
        if bool(area) != bool(level):
            raise UsageError("give an area and its level, or neither")
        api, body = _api(context), {"area": "" if area == "all" else area}
        answer = (
            api.ask("PUT", f"{API}/log-levels", body={**body, "level": None if level == "default" else level})
            if area
            else api.ask("GET", f"{API}/log-levels")
        )
        rows = [{"area": name or "all", "level": value} for name, value in answer["levels"].items()]
        _show(context, rows, {"area": "area", "level": "level"})

    exit_with(run)


@app.command()
def health(
    context: typer.Context,
    ready: Annotated[bool, typer.Option("--ready", help="Whether clients should be sent to it.")] = False,
) -> None:
    """Ask whether the broker is well. Exit code 1 when only a restart helps, or nobody answers; with --ready,
    when clients should not be sent to it."""
    exit_with(lambda: _show_facts(context, _api(context).ask("GET", "/ready" if ready else "/health")))


@app.command()
def reload(context: typer.Context) -> None:
    """Read again what can change, and say what needs a restart."""
    exit_with(lambda: _show_facts(context, _api(context).ask("POST", f"{API}/reload", body={})))


@app.command()
def backup(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Of the copy. [default: the time]")] = "",
) -> None:
    """Make a consistent copy of the running store, and say where it is."""
    exit_with(lambda: _show_facts(context, _api(context).ask("POST", f"{API}/backup", body={"name": name})))


@app.command()
def backups(context: typer.Context) -> None:
    """List copies of the store."""

    def run() -> None:
        rows = _api(context).ask("GET", f"{API}/backups")["backups"]
        columns = {"name": "name", "made": "made", "bytes": "bytes", "path": "path"}
        _show(context, rows, columns)

    exit_with(run)


def _confirm(yes: bool, question: str) -> None:
    """UsageError where nobody says yes."""
    if not yes and not typer.confirm(question):
        raise UsageError("nothing was done")
