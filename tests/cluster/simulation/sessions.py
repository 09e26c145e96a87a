"""What the engine of a simulated node has of sessions, and what it gives to the keeper."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.simulation.visitors import Visit

EXPIRY_S = 3600
STEP = 64  # between the clocks of two ids: the lowest bits are the reactor
_SESSION = struct.Struct(">QIqqIqI")
_ID = struct.Struct(">QQ")


@dataclass
class Work:
    """As `StoreWork`, and what is told when it is answered: whether it was done."""

    writes: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)
    references: list[tuple[bytes, int]] = field(default_factory=list)
    described: list[tuple[Any, ...]] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    trims: list[Any] = field(default_factory=list)
    expired: list[bytes] = field(default_factory=list)
    purges: list[bytes] = field(default_factory=list)
    left: list[tuple[bytes, int, bool]] = field(default_factory=list)
    arrived: list[tuple[bytes, bool]] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)
    let_go: list[tuple[bytes, int]] = field(default_factory=list)
    elsewhere: set[bytes] = field(default_factory=set)
    adds: bool = False
    outdated: bool = False
    more: bool = False
    streams: int = 0
    promises: list[Callable[[bool], None]] = field(default_factory=list)


@dataclass
class Doubles:
    """As `queues/doubles.py`: what a session that has come has had."""

    until: float
    taken: dict[tuple[int, int], int]
    ids: set[bytes]

    def is_new(self, message_id: bytes) -> bool:
        """Whether it was not known; now it is."""
        known = message_id in self.ids
        self.ids.add(message_id)
        return not known

    def comes_twice(self, message_id: bytes) -> bool:
        """Whether what was published is the session's already, or was at its old home."""
        clock, origin = _ID.unpack(message_id)
        return clock <= self.taken.get((origin, clock % STEP), 0) or not self.is_new(message_id)


@dataclass
class Stored:
    """A session, with all that waits in its queue, by id, and what of it is in flight, by place."""

    client: str
    number: int
    filters: set[str] = field(default_factory=set)
    waiting: dict[bytes, bytes] = field(default_factory=dict)
    had: set[bytes] = field(default_factory=set)  # what was waiting at any time
    flights: dict[int, bytes] = field(default_factory=dict)
    next_place: int = 0
    visit: Visit | None = None
    kept: bool = False
    older_may_come: bool = False
    open_until: float = 0.0  # 0: it is not asked to leave
    outside: set[bytes] = field(default_factory=set)  # messages whose rows another node has written
    doubles: Doubles | None = None

    @property
    def key(self) -> bytes:
        return self.client.encode()

    def value(self, ends_at_ms: int) -> bytes:
        """Its row."""
        return _SESSION.pack(self.number, EXPIRY_S, ends_at_ms, 0, 0, -1, 0)
