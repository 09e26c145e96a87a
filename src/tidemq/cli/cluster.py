"""`tidemq cluster`: the nodes of a cluster, asked of one of them over its admin API (docs/cluster.md)."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from tidemq.cli.admin_request import (
    DEFAULT_URL,
    Api,
    CaFile,
    RequestError,
    TokenFile,
    Url,
    exit_with,
    printable,
    show_table,
)
from tidemq.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from tidemq.errors import UsageError

PATH = "/api/v1/cluster"
LOOK_S = 0.5
NO_ESTIMATE = {"staying_behind": "stays behind", "stalled": "no progress"}

app = typer.Typer(
    help="Look after a cluster, over the admin API of one of its nodes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@app.callback()
def describe() -> None:
    """Look after a cluster, over the admin API of one of its nodes."""


@app.command()
def status(
    url: Url = DEFAULT_URL, token_file: TokenFile = "", cafile: CaFile = "", as_json: AsJson = False
) -> None:
    """Show the nodes, how far behind each is, and what is degraded."""

    def run() -> None:
        answer = _ask(Api(url, token_file, cafile))
        if as_json:
            print(json.dumps(answer))
        else:
            _show(answer)

    exit_with(run)


@app.command()
def drain(url: Url = DEFAULT_URL, token_file: TokenFile = "", cafile: CaFile = "") -> None:
    """Have the node that is asked leave the cluster: its sessions go to the others first. Returns when it can
    be stopped."""

    def run() -> None:
        api = Api(url, token_file, cafile)
        state = api.ask("POST", f"{PATH}/drain")
        said = None
        while state["phase"] != "left":
            if state != said:
                print(f"{state['phase']}: {state['sessions_left']} sessions are left", flush=True)
                said = state
            time.sleep(LOOK_S)
            state = _ask(api)["drain"]
        print("the node has left the cluster, and can be stopped")

    exit_with(run)


@app.command()
def forget(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name, or its incarnation.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    cafile: CaFile = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Forget a node that will not come back. No log is kept for it any more; it could only join as new."""

    def run() -> None:
        if not yes and not typer.confirm(f"Is {node} gone for good?"):
            raise UsageError("nothing was done")
        answer = Api(url, token_file, cafile).ask("POST", f"{PATH}/forget", body={"node": node})
        print(f"{printable(answer['forgotten'])} is a member no more")

    exit_with(run)


@app.command()
def verify(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    cafile: CaFile = "",
    as_json: AsJson = False,
    wait_s: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, max=3600, help="For what is on its way."),
    ] = 30.0,
) -> None:
    """Compare what all nodes have stored, and name the first difference. Exit code 0: all have the same, 1:
    they differ, 2: that cannot be said."""
    outcome = "unknown"

    def run() -> None:
        nonlocal outcome
        api = Api(url, token_file, cafile)
        state = api.ask("POST", f"{PATH}/verify", body={"wait_s": wait_s})
        while state["outcome"] == "running":
            time.sleep(LOOK_S)
            state = api.ask("GET", f"{PATH}/verify")
        if as_json:
            print(json.dumps(state))
        else:
            _show_comparison(state)
        outcome = state["outcome"]

    try:
        exit_with(run)
    except typer.Exit:
        raise typer.Exit({"equal": 0, "different": EXIT_FAILED}.get(outcome, EXIT_USAGE)) from None


def _ask(api: Api) -> dict[str, Any]:
    answer: dict[str, Any] = api.ask("GET", PATH)
    if not answer["name"]:
        raise RequestError("the broker is no node of a cluster: it was started without --cluster-name")
    return answer


def _show_comparison(state: dict[str, Any]) -> None:
    for name in state["left_out"]:
        print(f"left out: {printable(name)}, of which nothing is heard")
    nodes = ", ".join(printable(each["name"]) for each in state["nodes"])
    print(f"compared: {nodes}; {state['rows']} rows in {state['looks']} looks")
    print(f"{state['outcome']}: {printable(state['text'])}")
    if state["outcome"] == "different":
        for each in state["nodes"]:
            print(f"  {printable(each['name'])} ({each['incarnation']}) has {printable(each['has'])}")


def _show(answer: dict[str, Any]) -> None:
    print(f"cluster {answer['name']}: {len(answer['members'])} nodes")
    heads = [
        "node",
        "incarnation",
        "address",
        "state",
        "since",
        "heard s",
        "behind",
        "behind s",
        "left s",
        "copies",
        "reads",
    ]
    show_table(heads, [_row(each) for each in answer["members"]])
    for each in answer["members"]:
        if each["rows_taken"] is not None:
            print(f"joining: {printable(each['name'])} has taken {each['rows_taken']} rows so far")
    print(f"format in use: {answer['format'] or 'none yet'}")
    print(f"log: {answer['log_records']} records, {answer['log_bytes']} bytes")
    for text in answer["degraded"] or ["nothing"]:
        print(f"degraded: {printable(text)}")
    for each in answer["troubles"]:
        print(
            f"trouble: {printable(each['whose'])}, {each['count']} times, last at {each['at']}:"
            f" {printable(each['text'])}"
        )


def _row(member: dict[str, Any]) -> list[object]:
    copies = member["copies"]
    last = copies["last"] if copies is not None else None
    return [
        f"{member['name']} (asked)" if member["is_self"] else member["name"],
        member["incarnation"],
        member["address"],
        member["state"],
        member["since"],
        member["heard_s"],
        member["behind_records"],
        member["behind_s"],
        NO_ESTIMATE.get(member["progress"], member["left_s"]),
        f"to record {last}" if last is not None else None,
        f"format {_range(*member['formats'])}" if member["formats"] is not None else None,
    ]


def _range(lowest: int, highest: int) -> str:
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
