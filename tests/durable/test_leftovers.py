"""When all is delivered and acknowledged, the store holds nothing of any message; when all sessions have
ended, nothing of them either. What it holds meanwhile can be read by the documented layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected, kept
from durable.load import run_load
from waiting import wait_until

from tidemq.broker.durability import keeper
from tidemq.store import FAMILIES, Write
from tidemq.store.rows import PARSERS

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def all_rows(server: Server) -> dict[str, int]:
    """How many rows each family has, but for what a store always has."""
    rows = {family: len(server.rows(family)) for family in FAMILIES if family != "meta"}
    return {family: count for family, count in rows.items() if count}


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarts"])
@pytest.mark.parametrize(
    ("kind", "seed"), [("memory", 1), ("memory", 2), ("memory", 3), ("rocksdb", 4), ("sqlite", 5)]
)
def test_a_mixed_load_leaves_nothing(servers: Servers, kind: str, seed: int, restarts: bool) -> None:
    server = servers(kind, 2, queue_window_messages=5)
    server = run_load(servers, server, seed, 300, restarts)
    wait_until(lambda: not all_rows(server), f"no rows of {all_rows(server)}")
    assert not server.keeper.failure
    assert server.count("store_corrupt_rows") == 0
    assert server.count("live_messages") == 0


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_session_that_ends_with_a_full_queue(
    servers: Servers, crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are removed bit by bit, also when the broker restarts meanwhile; what others share stays."""
    monkeypatch.setattr(keeper, "PURGE_ROWS", 3)
    server = servers("memory", 2)
    ending, staying = (connected(server, **kept(5)) for _ in range(2))
    for client in (ending, staying):
        client.subscribe("t", 1)
        client.drop()
    publisher = connected(server)
    for number in range(50):
        publisher.publish("t", b"%d" % number, 1, message_expiry=1000)
    assert len(server.rows("queue")) == 100
    server.store.delay_s = 0.01
    server.back(ending.client_id, session_expiry=0).drop()
    server.wait_for_rows("session", 1)
    server = servers.restart(server, crash)
    server.wait_for_rows("queue", 50)
    client = server.back(staying.client_id)
    for number in range(50):
        client.expect_message("t", b"%d" % number, 1)
    server.wait_until_empty()


def test_rows_of_a_queue_without_a_session_go_at_the_start(servers: Servers) -> None:
    """As a crash leaves them behind between the end of a session and the removal of its queue."""
    server = servers("memory")
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    client.drop()
    publisher = connected(server, **kept(5))
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1, message_expiry=1000)
    server.stop()
    server.store.write([("session", client.client_id.encode(), None)], sync=True)
    server = servers.restart(server, crash=False)
    server.wait_until_empty()
    server.back(client.client_id, present=False).expect_nothing()


def test_every_row_follows_the_documented_layout(servers: Servers) -> None:
    """After a random load, with its sessions and messages still there."""
    server = servers("memory", 2, queue_window_messages=5)
    seen: set[str] = set()
    write = server.store.write

    def checked(batch: Sequence[Write], *, sync: bool) -> None:
        for family, key, value in batch:
            if value is not None:
                PARSERS[family](key, value)
                seen.add(family)
        write(batch, sync=sync)

    server.store.write = checked  # type: ignore[method-assign]
    run_load(servers, server, 7, 400, restarts=False)
    assert not server.keeper.failure
    assert seen >= {
        "payload",
        "reference",
        "queue",
        "expiry",
        "session",
        "received",
        "subscription",
        "retained",
    }
