"""The breaks that are planted, by the engine's rooms."""

from __future__ import annotations

from assertions.breaks import base, clients, door, index, journal, link, queues, turn
from assertions.planted import Break

PLANTED: list[Break] = [
    *base.PLANTED,
    *index.PLANTED,
    *journal.PLANTED,
    *link.PLANTED,
    *queues.PLANTED,
    *clients.PLANTED,
    *turn.PLANTED,
    *door.PLANTED,
]
