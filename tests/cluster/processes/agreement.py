"""What all nodes agree on at the end of a run, and what they need not remember any more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from cluster.processes.nodes import Node, Nodes
from crash.history import History
from waiting import WAIT_S, happens

from tidemq.cli.admin_request import Api
from tidemq.cluster.sharing import Sharing
from tidemq.errors import TideMQError
from tidemq.store.rocksdb import RocksDBStore

VERIFY_S = WAIT_S  # for nodes to have applied the same
TRIM_S = WAIT_S  # until all have said so, and nobody needs a record or a tombstone any more
TIDY_S = 1.0  # and have tidied up
PATIENT = 0.1  # of runs: until queue entries of sessions that moved need not be remembered either
PATH = "/api/v1/cluster"
ALWAYS = {b"e": "ended sessions", b"g": "subscriptions or retained messages"}
LATER = {b"r": "queue entries"}


async def compare(nodes: Nodes, history: History) -> None:
    """All are there, and no client is at work. Fails the history where rows differ, or logs stay long."""
    first = nodes.all[0]

    async def all_are_heard() -> bool:  # not where the machine has just stood still
        members = (await ask(first, "GET", PATH))["members"]
        return all(each["state"] == "alive" for each in members)

    if not await _until(all_are_heard, WAIT_S):
        history.fail("apart", f"{first.name} does not hear all nodes {WAIT_S} s after they have met")
        return
    await ask(first, "POST", f"{PATH}/verify", {"wait_s": VERIFY_S})
    found: dict[str, Any] = {}

    async def has_ended() -> bool:
        found.update(await ask(first, "GET", f"{PATH}/verify"))
        return bool(found["outcome"] != "running")

    await _until(has_ended, 2 * VERIFY_S)
    if found["outcome"] != "equal" or found["left_out"]:
        history.fail("digests", f"the nodes' rows are not equal: {found}")
    for node in nodes:

        async def is_trimmed(of: Node = node) -> bool:
            return bool((await ask(of, "GET", PATH))["log_records"] == 0)

        if not await _until(is_trimmed, TRIM_S):
            count = (await ask(node, "GET", PATH))["log_records"]
            history.fail("long log", f"{node.name} still has {count} records {TRIM_S} s after all was done")
    await asyncio.sleep(TIDY_S)


async def wait_for_moves(suspect_s: float) -> None:
    """Until nobody remembers what was removed of sessions that have moved."""
    await asyncio.sleep(Sharing(suspect_s).for_s + TIDY_S)


def look_for_tombstones(node: Node, history: History, *, patient: bool) -> None:
    """The node was the first to stop, after `compare`. Fails the history where it still remembers what is
    gone. `patient`: after `wait_for_moves`, too.
    """
    store = RocksDBStore(node.data)
    store.open()
    try:
        left = Counter(key[:1] for key, _ in store.scan("cluster"))
    finally:
        store.close()
    for letter, what in {**ALWAYS, **(LATER if patient else {})}.items():
        if left[letter]:
            history.fail("tombstones", f"{node.name} still remembers {left[letter]} {what} that are gone")


async def _until(is_so: Callable[[], Any], within_s: float) -> bool:
    return await happens(is_so, within_s, poll_s=0.2)


async def ask(node: Node, method: str, path: str, body: dict[str, object] | None = None) -> Any:
    """What a node answers; AssertionError where it does not."""
    api = Api(f"http://127.0.0.1:{node.admin_port}", "", "")
    try:
        return await asyncio.to_thread(api.ask, method, path, body=body)
    except TideMQError as error:
        raise AssertionError(f"{node.name} does not answer {method} {path}: {error}") from error
