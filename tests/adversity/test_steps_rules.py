"""New rules while a client has 100,000 subscriptions: they end over turns between which others are served."""

from __future__ import annotations

import pytest
from adversity.conftest import StartEngine
from adversity.test_steps_index import COUNT, subscribe_all
from conformance.kit import Client, connected, kept

from tidemq.engine.door.events import Revoked
from tidemq.engine.door.rule_row import PUBLISH, SUBSCRIBE, RuleRow

ALL = PUBLISH | SUBSCRIBE
OPEN = RuleRow(True, ALL, b"open/#")


@pytest.mark.parametrize("away", [False, True], ids=["connected", "away"])
def test_a_client_with_as_many_subscriptions_under_new_rules(start_engine: StartEngine, away: bool) -> None:
    """Also where it comes back to them, and where others come before it is through."""
    engine = start_engine(1, subscriptions_max=COUNT + 1)
    engine.engine.set_rules([RuleRow(True, ALL, b"#")])
    client, other = Client(engine.port), connected(engine)
    client.connect("many", **kept(5))
    client.subscribe("open/1")
    subscribe_all(client)
    if away:
        client.disconnect()
    engine.engine.set_rules([OPEN, RuleRow(True, ALL, b"s/1")])
    engine.engine.set_rules([OPEN])
    if away:
        other.ping()  # the rules are there
        client = connected(engine, 5, "many", **kept(5))
    engine.wait_for("subscriptions_revoked", COUNT)
    assert engine.count("subscriptions") == 1
    other.publish("open/1", b"x")
    client.expect_message("open/1", b"x")
    revoked = [event for event in engine.engine.events() if isinstance(event, Revoked)]
    assert sum(event.subscriptions for event in revoked) == COUNT
