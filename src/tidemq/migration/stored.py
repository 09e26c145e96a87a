"""What a Mosquitto kept in its `mosquitto.db`, and what becomes of it under the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tidemq.broker.access.judging import Client, RulesByUser, decide, is_allowed
from tidemq.broker.acl_rules import AclRule
from tidemq.config import refused
from tidemq.migration.report import Report
from tidemq.store.mosquitto import MosquittoState, parse_mosquitto
from tidemq.wire.filters import bare_filter


def read_state(path: Path) -> MosquittoState:
    """What a Mosquitto that has stopped kept in its `mosquitto.db`; ConfigError, StoreError."""
    try:
        return parse_mosquitto(path.read_bytes())
    except OSError as error:
        raise refused(str(path), "--data", str(error.strerror), ["a readable mosquitto.db"]) from error


def report_state(state: MosquittoState, report: Report) -> None:
    """How much of each kind there is."""
    counts = {
        "sessions": len(state.clients),
        "subscriptions": len(state.subscriptions),
        "queued messages": len(state.deliveries),
        "retained messages": len(state.retained),
    }
    for what, count in counts.items():
        report.add("taken", "mosquitto.db", what, str(count))
    for reason, count in state.left_out.items():
        report.add("not taken", "mosquitto.db", reason, f"{count}, which are left out")


def leave_out_bridges(state: MosquittoState, client_ids: Iterable[str], report: Report) -> None:
    """Takes the sessions out of `state` in which Mosquitto keeps what waits for other brokers: a bridge of
    TideMQ makes its own, and nobody would ever come for these.
    """
    for client_id in client_ids:
        key = client_id.encode()
        if state.clients.pop(key, None) is None:
            continue
        state.subscriptions = [each for each in state.subscriptions if each[0] != key]
        waiting = [each for each in state.deliveries if each.client_id == key]
        state.deliveries = [each for each in state.deliveries if each.client_id != key]
        if waiting:
            text = (
                f"{len(waiting)} messages waited for the bridge and are left out: stop Mosquitto when the "
                "bridge is connected and has sent them"
            )
            report.add("not taken", "mosquitto.db", f"session {client_id!r}", text)
        else:
            text = "the bridge's own session, in which nothing waited: the bridge makes another"
            report.add("taken", "mosquitto.db", f"session {client_id!r}", text)


def refused_subscriptions(
    state: MosquittoState, rules: tuple[AclRule, ...]
) -> Iterator[tuple[str, str, str]]:
    """Stored subscriptions that these rules will end when their client comes: its identifier, the filter, and
    why.
    """
    by_user = RulesByUser(rules)
    for client_id, topic_filter, _, _ in state.subscriptions:
        name, wanted = client_id.decode(errors="replace"), topic_filter.decode(errors="replace")
        user = state.users.get(client_id)
        client, bare, known = Client(name, user), bare_filter(wanted), by_user.of(user)
        if not is_allowed(known, client, "subscribe", bare):
            decision = decide(known, client, "subscribe", bare)
            line = decision.rule and decision.rule.line
            why = f"line {line} refuses a part of it" if line else "no line allows it"
            yield name, wanted, f"user {user!r}: {why}"
