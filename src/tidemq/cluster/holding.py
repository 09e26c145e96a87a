"""What is published for a session that no engine has for a moment.

A node may take a session again of which its engine still has what was there before another node took it. The
engine forgets that, and then reads the session. Where the other node is not reached, what is published in
between would be nobody's. So it waits for that node, as what goes to a node that does not answer; when the
session is there, or may stay where it is (`held_sessions.py`), it is refused, and its publishers send it
again.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from tidemq.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from tidemq.engine import NodeAccess

_REFUSED = 0x80

_log = logging.getLogger("tidemq.cluster")


class Waited(Protocol):
    """Another node."""

    @property
    def slot(self) -> int:
        """By which the engine names it."""

    @property
    def wanted(self) -> Mapping[str, int]:
        """The filters that it wants itself."""


class Holding:
    """Of one node. `nodes` by incarnation, as they are while `turn` is called, on one thread; the other
    methods may be called on any.
    """

    def __init__(self, access: NodeAccess, nodes: Mapping[int, Waited]) -> None:
        self._access = access
        self._nodes = nodes
        self._lock = threading.Lock()  # over what follows
        self._wanted: dict[str, tuple[int, list[str]]] = {}  # by client: for whom, and with what
        self._held: dict[str, tuple[int, list[str]]] = {}  # the same, as the engine knows it

    def hold(self, client: str, node: int, filters: list[str]) -> bool:
        """As in `Links`."""
        with self._lock:
            wanted = self._wanted.get(client)
            if wanted is not None and wanted[0] == node:
                return self._held.get(client) == wanted
            self._wanted[client] = node, filters
        self._access.poke()
        return False

    def let_go(self, client: str) -> None:
        """As in `Links`."""
        with self._lock:
            self._wanted.pop(client, None)
        self._access.poke()

    def turn(self) -> None:
        """Tells the engine what has changed."""
        with self._lock:
            before, now = self._held, dict(self._wanted)
        if now == before:
            return
        for client, (incarnation, filters) in now.items():
            node = self._nodes.get(incarnation)
            if node is not None and before.get(client) != now[client]:
                self._begin(node, filters)
        with self._lock:
            self._held = now
        self._end([held for client, held in before.items() if now.get(client) != held])

    def _end(self, over: Iterable[tuple[int, list[str]]]) -> None:
        gone: defaultdict[int, set[str]] = defaultdict(set)
        for incarnation, filters in over:
            gone[incarnation].update(filters)
        for incarnation, filters in self._held.values():
            if incarnation in gone:
                gone[incarnation].difference_update(filters)
        for incarnation, those in gone.items():
            node = self._nodes.get(incarnation)
            if node is not None:
                self._access.change_filters(node.slot, list(those.difference(node.wanted)), [])
                self._access.settle(node.slot, _REFUSED)

    def _begin(self, node: Waited, filters: list[str]) -> None:
        try:
            self._access.change_filters(node.slot, [], filters)
        except (
            RefusedError,
            UsageError,
        ) as error:  # too many: the client is not kept waiting
            _log.warning("what is published while a session is taken may be lost: %s", error)
