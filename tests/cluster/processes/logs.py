"""How long the logs of nodes are while clients are at work: as long as all nodes are there and hear each
other, each becomes shorter again and again.
"""

from __future__ import annotations

import asyncio

from cluster.processes.agreement import PATH, ask
from cluster.processes.nodes import Nodes
from crash.history import History

LOOK_S = 5.0
GROWS_S = 60.0  # of such time in which a log has not become shorter; some seconds are enough
FEW = 100  # records that may be there all the time


class LogWatch:
    """Of one run."""

    def __init__(self, nodes: Nodes, history: History) -> None:
        self._nodes, self._history = nodes, history
        self._whole_s = 0.0  # so long all nodes have heard each other
        self._shorter_at: dict[str, float] = {}  # by node, in such time
        self._last: dict[str, int] = {}

    async def watch(self) -> None:
        """For ever."""
        was_whole = False
        while True:
            await asyncio.sleep(LOOK_S)
            is_whole = self._nodes.is_whole
            if is_whole and was_whole:
                self._whole_s += LOOK_S
                for node in self._nodes:
                    try:
                        self.note(node.name, (await ask(node, "GET", PATH))["log_records"])
                    except AssertionError:  # it has just been killed
                        break
            was_whole = is_whole

    def note(self, name: str, count: int) -> None:
        """A node's log has so many records now."""
        before = self._last.get(name, 0)
        self._last[name] = count
        if count < before or count <= FEW or name not in self._shorter_at:
            self._shorter_at[name] = self._whole_s
        elif self._whole_s - self._shorter_at[name] > GROWS_S:
            self._shorter_at[name] = self._whole_s
            text = f"the log of {name} has not become shorter for {GROWS_S} s: {count} records"
            self._history.fail("long log", text)
