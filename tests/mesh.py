"""Engines in one process, each a node to the others: threads carry what their NodeAccess gives and takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from waiting import POLL_S, WAIT_S, wait_until

from tidemq.engine.door.node_access import NodeAccess
from tidemq.errors import UsageError


class Linked(Protocol):
    """What has links to other nodes."""

    @property
    def nodes(self) -> NodeAccess: ...


class Mesh:
    """Full mesh: engine N is node N to all others. What goes from one to another can be held and let go."""

    def __init__(self, engines: Sequence[Linked]) -> None:
        self.engines = engines
        self._begun: set[int] = set()
        self._held: set[tuple[int, int]] = set()
        self._moved = threading.Condition()
        self.carried = [0] * len(engines)  # batches that each has sent
        self.failure: Exception | None = None
        self._threads = [threading.Thread(target=self._carry, args=(each,)) for each in range(len(engines))]
        for thread in self._threads:
            thread.start()

    def share_interest(self) -> None:
        """Tells each engine what the others want now."""
        for index, engine in enumerate(self.engines):
            if index in self._begun:
                changes = engine.nodes.interest_changes()
            else:
                changes = [(text, True) for text in engine.nodes.all_interest()]
                self._begun.add(index)
            plain = [change for change in changes if not change[0].startswith("$share/")]
            shared = dict(change for change in changes if change[0].startswith("$share/"))
            online = dict(zip(shared, engine.nodes.members_online(list(shared)), strict=True))
            groups = [(text, online[text] if there else -1) for text, there in shared.items()]
            added = [text for text, there in plain if there]
            removed = [text for text, there in plain if not there]
            for other in self.engines:
                if other is not engine:
                    other.nodes.change_filters(index, removed, added)
                    other.nodes.change_groups(index, groups)

    def hold(self, source: int, target: int) -> None:
        """Nothing gets from one to the other until `let_go`."""
        with self._moved:
            self._held.add((source, target))

    def let_go(self) -> None:
        """All that was held goes on its way."""
        with self._moved:
            self._held.clear()
            self._moved.notify_all()

    def _carry(self, source: int) -> None:
        """One thread for each engine; what is held waits apart, for the others must not wait."""
        access = self.engines[source].nodes
        waiting: list[tuple[int, bytes]] = []
        try:
            while (taken := access.take(0.02 if waiting else 0.5)) is not None:
                waiting += taken
                with self._moved:
                    held = set(self._held)
                ready = [each for each in waiting if (source, each[0]) not in held]
                waiting = [each for each in waiting if (source, each[0]) in held]
                for target, batch in ready:
                    self._deliver(source, target, batch)
        except Exception as error:  # noqa: BLE001 - the test's thread raises it
            self.failure = error

    def _deliver(self, source: int, target: int, batch: bytes) -> None:
        deadline = time.monotonic() + WAIT_S
        access = self.engines[target].nodes
        try:
            while not access.give(source, batch):
                assert time.monotonic() < deadline, "a node takes nothing"
                time.sleep(POLL_S)
        except UsageError:
            pass  # it is closed
        self.engines[source].nodes.sent(target, len(batch))
        self.carried[source] += 1

    def close(self) -> None:
        """Ends the links; the engines go on."""
        for engine in self.engines:
            engine.nodes.close()
        for thread in self._threads:
            thread.join(WAIT_S)
        if self.failure is not None:
            raise self.failure


@contextmanager
def meshed(*engines: Linked) -> Iterator[Mesh]:
    """A mesh that is closed afterwards."""
    mesh = Mesh(engines)
    try:
        yield mesh
    finally:
        mesh.close()


def wait_for_drain(*engines: Linked) -> None:
    """Waits until nothing is under way between any two."""
    for engine in engines:
        for node in range(len(engines)):
            wait_until(lambda: engine.nodes.under_way(node) == 0, "nothing is under way")  # noqa: B023
