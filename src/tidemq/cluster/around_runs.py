"""What a run of operations (`run_rows.py`) must know of the rows around it."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from tidemq.cluster.forms import encode
from tidemq.cluster.operations import SESSION, Owner
from tidemq.cluster.pending import Pending
from tidemq.cluster.stored_tables import FAMILY


class Around:
    """What a run (`run_rows.py`) asks of the rows around it, all that this batch has changed otherwise among
    it. `by`: the node of its record. `apart`: clients of whose entries a run changes none, and of whose new
    ones `note_added` is told.
    """

    def __init__(
        self,
        rows: Any,
        pending: Pending,
        by: int,
        apart: Container[str],
        note_added: Callable[[str, bytes], None],
    ) -> None:
        self._rows = rows  # `StoredRows`
        self._pending = pending
        self._by = by
        self._apart = apart
        self.note_added = note_added  # client, message id

    def place(self, client: str) -> bytes:
        """The queue where new messages of a client go, as keys have it; empty: not by a run."""
        if self._has_changed_session(client):
            return b""  # the queue that it has when the batch is written may be another
        for _, end in self._rows.ends.of(client):
            if end.known is not None and self._by not in end.known:
                return b""  # it is hidden, or the first that is not
        current: int = self._rows.owners.current(Owner(SESSION, client))
        return current.to_bytes(8)

    def session(self, client: str) -> tuple[bytes, bytes]:
        """A client's queue, as keys have it, and what lies beside its session; empty: no run may send."""
        numbers = self._rows.owners.numbers(Owner(SESSION, client))
        if len(numbers) != 1 or self._has_changed_session(client):
            return b"", b""
        beside = self._pending.get(FAMILY, b"s" + encode("text", client))
        if beside is None or self._pending.get("session", client.encode()) is None:
            return b"", b""
        return numbers[0].to_bytes(8), beside

    def is_apart(self, client: str) -> bool:
        """Whether `note_added` is to be told of what is added."""
        return client in self._apart

    def leaves_alone(self, client: str) -> bool:
        """Whether no entry of a client's may be changed by a run."""
        return client in self._apart or self.has_changed_entries(client)

    def has_changed_entries(self, client: str) -> bool:
        """Whether this batch has changed any of a client's entries, or what is remembered of them."""
        owner, rows = Owner(SESSION, client), self._rows
        return bool(rows.entries.has_changed(owner) or rows.removed.has_changed(owner))

    def has_changed_payload(self, clock: int, incarnation: int) -> bool:
        """Whether the number of references to a message has changed."""
        return bool(self._rows.payloads.has_changed((clock, incarnation)))

    def _has_changed_session(self, client: str) -> bool:
        return bool(self._rows.sessions.has_changed(client) or self._rows.ends.has_changed(client))
