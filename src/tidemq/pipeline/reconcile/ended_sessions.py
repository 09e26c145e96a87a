"""Which session of a client goes on, and what went with the end of another: as nodes of a cluster decide it
when they apply each other's records (`tidemq/cluster/applying.py`), from what each of them knows.

A record is whose it is, and its number; a vector says which records of each node have been applied. What a
node has not, though it has applied the record that made it, it has removed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ALL = 2**64 - 1  # records of a node
Stamp = tuple[int, int]  # clock, and whose
Vector = Mapping[int, int]


class Record(NamedTuple):
    """By which node, and which of its records."""

    by: int
    number: int


class Session(NamedTuple):
    """The epochs of its client's last CONNECT and its own, and the record that has its row. Of several the
    highest goes on.
    """

    connected: Stamp
    epoch: Stamp
    record: Record


class End(NamedTuple):
    """At this epoch, with what `seen` covers; `over`: the newest CONNECT that it is known to have ended, and
    the record of that session. `known`: of each node its first record that has something for the client, and
    knows of the end and of a session after it; all before that has gone with the end, and all of other nodes.
    None: nothing of the kind.
    """

    epoch: Stamp
    seen: Vector
    known: Vector | None
    over: tuple[Stamp, Record] | None


@dataclass(slots=True)
class Client:
    """What each node knows of a client; both by the node's index."""

    sessions: dict[int, Session] = field(default_factory=dict)
    ends: dict[int, dict[Record, End]] = field(default_factory=dict)


def covers(vector: Vector, record: Record) -> bool:
    return vector.get(record.by, 0) >= record.number


def hidden_upto(end: End, by: int) -> int:
    """Up to which of a node's records what they made of the client's went with the end."""
    seen = end.seen.get(by, 0)
    return seen if end.known is None else max(seen, end.known.get(by, ALL + 1) - 1)


def live_ends(client: Client, vectors: Sequence[Vector]) -> dict[Record, End]:
    """The ends that count: no node has found them void, or forgotten them since all knew of them."""
    every: dict[Record, End] = {}
    for ends in client.ends.values():
        for record, end in ends.items():
            other = every.get(record)
            known = None if end.known is None else {**end.known, **(other.known or {} if other else {})}
            every[record] = end._replace(known=known)
    return {
        record: end
        for record, end in every.items()
        if not any(
            covers(vector, record) and record not in client.ends.get(node, {})
            for node, vector in enumerate(vectors)
        )
        and not any(
            _is_void(end, *known)
            for node, vector in enumerate(vectors)
            if not covers(vector, record)
            for known in _sessions_known(client, node)
        )
    }


def _sessions_known(client: Client, node: int) -> list[tuple[Stamp, Record]]:
    """When their clients came, and their records."""
    known = [end.over for end in client.ends.get(node, {}).values() if end.over is not None]
    there = client.sessions.get(node)
    return [*known, (there.connected, there.record)] if there is not None else known


def _is_void(end: End, connected: Stamp, record: Record) -> bool:
    """Whether a session that does not know of the end has gone on."""
    return connected > end.epoch and not covers(end.seen, record)


def going_on(client: Client, ends: Mapping[Record, End], vectors: Sequence[Vector]) -> int | None:
    """The node that has the session's row as it is from now on; None: it has ended. `ends`: those that
    count. Under one epoch a row is changed by the epoch's node alone, so who has more of that has the newer.
    """
    for rank in sorted({(each.connected, each.epoch) for each in client.sessions.values()}, reverse=True):
        holders = [node for node, each in client.sessions.items() if each.epoch == rank[1]]
        if not _has_ended(client, rank, holders, ends, vectors):
            return max(holders, key=lambda node: vectors[node].get(rank[1][1], 0))
    return None


def _has_ended(
    client: Client,
    rank: tuple[Stamp, Stamp],
    holders: Sequence[int],
    ends: Mapping[Record, End],
    vectors: Sequence[Vector],
) -> bool:
    """A node had it and has it no more; or an end that it did not know of is later."""
    for node, vector in enumerate(vectors):
        there = client.sessions.get(node)
        has_none = there is None or (there.connected, there.epoch) < rank
        if has_none and any(covers(vector, client.sessions[holder].record) for holder in holders):
            return True
    return any(
        end.epoch >= rank[0] and not any(covers(vectors[holder], record) for holder in holders)
        for record, end in ends.items()
    )
