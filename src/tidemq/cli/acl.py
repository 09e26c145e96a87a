"""`tidemq acl`: what the rules of a file say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.errors import TideMQError, UsageError

if TYPE_CHECKING:
    from tidemq.broker.access.judging import Decision
    from tidemq.broker.acl_rules import AclRule

EXIT_REFUSED = 3  # of `check`

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def describe() -> None:
    """Rules of who may publish and subscribe to what."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    action: Annotated[str | None, typer.Argument(metavar="[publish|subscribe]")] = None,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="A topic name, or a filter to subscribe to.")
    ] = None,
    client_id: Annotated[str, typer.Option("--client", "-c", metavar="ID")] = "",
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME")] = None,
    group: Annotated[list[str] | None, typer.Option("--group", "-g", metavar="NAME")] = None,
    address: Annotated[str | None, typer.Option("--address", "-a", metavar="IP")] = None,
    qos: Annotated[int, typer.Option(min=0, max=2)] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="Of a message that is to be retained.")] = False,
    mosquitto: Annotated[bool, typer.Option("--mosquitto", help="The file is one of Mosquitto's.")] = False,
) -> None:
    """Say what is decided, and by which line. Exits with 0 where it is allowed, with 3 where it is not, and
    with 1 where the file or the question is wrong.

    Without a question: list the filters that one line allows to subscribe to and another refuses in part, so
    that no such subscription is granted. Exits with 3 where there are any.
    """
    from tidemq.broker.access.file_formats import BRIDGE_STATES, read_rules
    from tidemq.broker.access.judging import Client, decide

    try:
        rules = read_rules(file, "mosquitto" if mosquitto else "tidemq")
        if action is None:
            raise typer.Exit(_list_cuts(rules))
        if action not in ("publish", "subscribe"):
            raise UsageError(f"{action!r} is not an action: use publish or subscribe")
        if topic is None:
            raise UsageError("the topic is missing")
        _check_topic(action, topic)
        client = Client(client_id, user, tuple(group or ()), ip_address(address) if address else None)
        own_state = f"{BRIDGE_STATES}{client_id}/state"  # as a bridge publishes it
        if action == "publish" and topic.startswith("$") and topic != own_state:
            print("refused: no client publishes to topics that begin with $")
            raise typer.Exit(EXIT_REFUSED)
        decision = decide(
            rules, client, "publish" if action == "publish" else "subscribe", topic, qos=qos, retain=retain
        )
    except (TideMQError, ValueError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
    print(_explain(file, decision))
    raise typer.Exit(0 if decision.allowed else EXIT_REFUSED)


def _list_cuts(rules: Sequence[AclRule]) -> int:
    """Prints them; gives the exit code."""
    from tidemq.broker.access.cuts import find_cuts

    cuts = find_cuts(rules)
    for cut in cuts:
        print(cut)
    if not cuts:
        print(f"{len(rules)} rules, which refuse no part of a filter that they allow to subscribe to")
    return EXIT_REFUSED if cuts else 0


def _check_topic(action: str, topic: str) -> None:
    """UsageError where it is no topic name, or no filter."""
    from tidemq.wire.faults import fault_text
    from tidemq.wire.topics import topic_filter_fault, topic_name_fault

    fault = topic_name_fault(topic) if action == "publish" else topic_filter_fault(topic)
    if fault:
        raise UsageError(f"{topic!r}: {fault_text(fault)}")


def _explain(file: Path, decision: Decision) -> str:
    effect = "allowed" if decision.allowed else "refused"
    if decision.rule is None:
        return f"{effect}: no line speaks of it"
    line = file.read_text(encoding="utf-8").split("\n")[decision.rule.line - 1].strip()
    return f"{effect} by line {decision.rule.line}: {line}"
