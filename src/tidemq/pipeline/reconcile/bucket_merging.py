"""The queues of several nodes become one, bucket by bucket, with Polars; docs/store.md says what is done with
which row.

A function here takes a list with a table for each node, in the order in which the nodes were given, as they
lie in a dump, and gives the table of all, and counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import polars as pl

NODES_MAX = 16
IDLE, IN_FLIGHT = 1, 2  # status of an entry
RELEASED, COUNTED, SENT = 2, 4, 8  # its flags
_PACKET_IDS = 65535
_ID = ["clock", "origin"]
_KEY = ["owner", *_ID]


@dataclass(slots=True)
class Counts:
    """What was found, of all nodes and of each."""

    total: Counter[str] = field(default_factory=Counter)
    nodes: list[Counter[str]] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.total += other.total
        self.nodes += [Counter() for _ in other.nodes[len(self.nodes) :]]
        for mine, theirs in zip(self.nodes, other.nodes, strict=False):
            mine += theirs

    def to_json(self) -> str:
        return json.dumps({"total": self.total, "nodes": self.nodes})

    @classmethod
    def from_json(cls, text: str) -> Self:
        said = json.loads(text)
        return cls(Counter(said["total"]), [Counter(each) for each in said["nodes"]])


@dataclass(frozen=True, slots=True)
class Owners:
    """Sessions and shared subscriptions of all nodes, by kind and name."""

    table: pl.DataFrame  # as in a dump, `owner` ascending from 0, with `side`: the node whose row it is
    numbers: list[pl.Series]  # of each node by its own number: that in `table`
    nodes: pl.Series  # by number: bits of the nodes that have it

    def renumbered(self, table: pl.DataFrame, node: int) -> pl.DataFrame:
        """A node's rows under the numbers of all, with `node`."""
        owner = self.numbers[node].gather(table["owner"]).alias("owner")
        return table.with_columns(owner, pl.lit(node, pl.UInt8).alias("node"))


def merge_owners(tables: Sequence[pl.DataFrame]) -> Owners:
    """Of the sessions of a client on several nodes that which was last online; of equal ones the first."""
    of_nodes = [each.with_columns(pl.lit(node, pl.UInt8).alias("side")) for node, each in enumerate(tables)]
    online = pl.col("ends_at_ms").eq(0).fill_null(True)
    every = pl.concat(of_nodes).drop("owner")
    every = every.sort(
        "kind", "name", online, "ends_at_ms", "side", descending=[False] * 2 + [True] * 2 + [False]
    )
    merged = every.unique(["kind", "name"], keep="first", maintain_order=True).with_row_index("owner")
    places = merged.select("kind", "name", pl.col("owner").alias("number"))
    numbers = [each.join(places, on=["kind", "name"], how="left").sort("owner")["number"] for each in tables]
    bits = pl.zeros(merged.height, pl.UInt16, eager=True)
    for node, each in enumerate(numbers):
        bits = bits | pl.zeros(merged.height, pl.UInt16, eager=True).scatter(each, 1 << node)
    return Owners(merged, numbers, bits)


def merge_subscriptions(tables: Sequence[pl.DataFrame], owners: Owners) -> pl.DataFrame:
    """All of them; of those that several nodes have, that of the session's side, else of the first."""
    every = pl.concat([owners.renumbered(each, node) for node, each in enumerate(tables)])
    far = owners.table["side"].gather(every["owner"]) != every["node"]
    every = every.with_columns(far.alias("far")).sort("owner", "topic_filter", "far", "node")
    return every.unique(["owner", "topic_filter"], keep="first", maintain_order=True).drop("far", "node")


def merge_seen(tables: Sequence[pl.DataFrame], owners: Owners) -> pl.DataFrame:
    """What any node has had."""
    every = pl.concat([owners.renumbered(each, node) for node, each in enumerate(tables)])
    return every.drop("node").unique().sort(every.columns[:-1])


def merge_entries(
    tables: Sequence[pl.DataFrame], seen: Sequence[pl.DataFrame], owners: Owners, now_ms: int
) -> tuple[pl.DataFrame, Counts]:
    """The entries that stay, in the order of owners and messages."""
    every = pl.concat([owners.renumbered(each, node) for node, each in enumerate(tables)])
    # stable, for it makes use of what is in order already: three times faster
    every = every.with_columns(_rank(every, owners).alias("rank")).sort(*_KEY, "rank", maintain_order=True)
    found = _of_nodes(every, len(tables))
    kept = every.filter(found["first"]).drop("rank")
    marks = found.filter(found["first"])
    removed = _removed(kept, marks["nodes"], seen, owners)
    expired = ~removed & (kept["expires_at_ms"] != 0) & (kept["expires_at_ms"] <= now_ms)
    counts = _counted(tables, marks, removed)
    stays = ~(removed | expired)
    kept, settled = _settle(kept.filter(stays), owners)
    counts.total.update(
        conflicts=int((marks["conflict"]).sum()),
        removed=int(removed.sum()),
        expired=int(expired.sum()),
        entries=kept.height,
        **settled,
    )
    return kept.with_columns(pl.col("flags") | COUNTED).drop("node"), counts


def _rank(every: pl.DataFrame, owners: Owners) -> pl.Series:
    """Of several rows of one entry the lowest is taken: released before in flight before idle; then that of
    the session's side, then of the first node."""
    far = owners.table["side"].gather(every["owner"]) != every["node"]
    in_flight = pl.col("status") == IN_FLIGHT
    level = (
        pl.when(in_flight & (pl.col("flags") & RELEASED != 0)).then(0).when(in_flight).then(32).otherwise(64)
    )
    rank = level.cast(pl.UInt8) + pl.lit(far).cast(pl.UInt8) * 16 + pl.col("node")
    return every.select(rank.alias("rank"))["rank"]


def _of_nodes(every: pl.DataFrame, nodes: int) -> pl.DataFrame:
    """Of sorted rows: whether it is the `first` of its entry; then the bits of the `nodes` that have the
    entry, and whether they have it in different states."""
    with_next = pl.all_horizontal(pl.col(each) == pl.col(each).shift(-1) for each in _KEY).fill_null(False)
    state = [pl.col("status"), pl.col("sequence"), pl.col("flags") & RELEASED]
    differs = pl.any_horizontal(each != each.shift(-1) for each in state)
    frame = every.select(
        with_next.alias("with_next"),
        (with_next & differs).fill_null(False).alias("conflict"),
    )
    bit = pl.Series([1 << node for node in range(NODES_MAX)], dtype=pl.UInt16).gather(every["node"])
    differ = frame["conflict"]
    same, all_bits, conflict = frame["with_next"], bit, differ
    for step in range(1, nodes):
        if not same.any():
            break
        ahead = bit.shift(-step).fill_null(0)
        all_bits = all_bits | ahead.zip_with(same, pl.zeros(len(bit), pl.UInt16, eager=True))
        same = same & frame["with_next"].shift(-step).fill_null(False)
        conflict = conflict | (same & differ.shift(-step).fill_null(False))
    first = ~frame["with_next"].shift(1).fill_null(False)
    return pl.DataFrame({"first": first, "nodes": all_bits, "conflict": conflict})


def _removed(kept: pl.DataFrame, nodes: pl.Series, seen: Sequence[pl.DataFrame], owners: Owners) -> pl.Series:
    """Whether a node that has seen an entry has it no more."""
    removed = pl.zeros(kept.height, pl.Boolean, eager=True)
    absent = owners.nodes.gather(kept["owner"]) & ~nodes
    ids = kept.select(_KEY).with_row_index("row")
    for node, table in enumerate(seen):
        here = ids.filter(absent & (1 << node) != 0)
        intervals = owners.renumbered(table, node).drop("node")
        within = here.join(intervals, on=["owner", "origin"]).filter(
            pl.col("clock").is_between(pl.col("first"), pl.col("last"))
        )
        removed = removed.scatter(within["row"], True)
    return removed


def _counted(tables: Sequence[pl.DataFrame], marks: pl.DataFrame, removed: pl.Series) -> Counts:
    counts = Counts()
    nodes = marks["nodes"]
    for node, each in enumerate(tables):
        bit = 1 << node
        has = nodes & bit != 0
        only = int((nodes == bit).sum())
        counts.nodes.append(
            Counter(
                rows=each.height,
                only=only,
                common=int(has.sum()) - only,
                removed=int((has & removed).sum()),
            )
        )
    return counts


def _settle(kept: pl.DataFrame, owners: Owners) -> tuple[pl.DataFrame, dict[str, int]]:
    """Gives every packet identifier of a client to one message in flight.

    A place in the outbox stands for a packet identifier (`sequence` modulo 65535), and the places of a queue
    must lie within so many of each other: those of another side than the session's move, and keep their
    identifiers. Of two messages under one identifier one keeps it: released before not, the session's side
    before others, the older before the younger. The other is idle again; if it was released, its client has
    it, and it goes.
    """
    kept = kept.with_row_index("row")
    flying = kept.filter(
        (kept["status"] == IN_FLIGHT) & (owners.table["kind"].gather(kept["owner"]) == "session")
    )
    if flying.is_empty():
        return kept.drop("row"), {"returned": 0, "done": 0}
    side = owners.table["side"].gather(flying["owner"])
    flying = flying.with_columns(
        (side != flying["node"]).alias("far"),
        (pl.col("flags") & RELEASED == 0).alias("open"),
        pl.col("sequence").cast(pl.Int64),
    )
    near = pl.col("sequence").filter(~pl.col("far")).min()
    base = pl.coalesce(near, pl.col("sequence").min()).over("owner")
    flying = flying.with_columns(base + (pl.col("sequence") - base) % _PACKET_IDS)
    flying = flying.sort("owner", "sequence", "open", "far", *_ID)
    taken = (pl.struct("owner", "sequence") == pl.struct("owner", "sequence").shift(1)).fill_null(False)
    flying = flying.with_columns(taken.alias("taken"))
    again = flying.filter(pl.col("taken") & pl.col("open"))["row"]
    done = flying.filter(pl.col("taken") & ~pl.col("open"))["row"]
    sequence = kept["sequence"].scatter(flying["row"], flying["sequence"].cast(pl.UInt64)).scatter(again, 0)
    flags = kept["flags"].scatter(again, kept["flags"].gather(again) & (0xFF ^ SENT))
    kept = kept.with_columns(sequence, flags, kept["status"].scatter(again, IDLE))
    kept = kept.filter(~pl.zeros(kept.height, pl.Boolean, eager=True).scatter(done, True))
    return kept.drop("row"), {"returned": len(again), "done": len(done)}


def merge_payloads(
    tables: Sequence[pl.DataFrame], ids: pl.DataFrame
) -> tuple[list[pl.DataFrame], Counter[str]]:
    """Each payload that the entries with these ids refer to, once, and how many do."""
    wanted = ids.group_by(_ID).len("references")
    count = wanted.height
    found = []
    for each in tables:
        here = each.drop("references").join(wanted, on=_ID)
        found.append(here.select(*_ID, "references", "message"))
        if here.height < wanted.height:
            wanted = wanted.join(here.select(_ID), on=_ID, how="anti")
        else:
            wanted = wanted.clear()
            break
    return found, Counter(payloads=count - wanted.height, payloads_missing=wanted.height)


def merge_retained(
    tables: Sequence[pl.DataFrame], seen: Sequence[Sequence[tuple[int, int, int]]]
) -> tuple[pl.DataFrame, Counter[str]]:
    """Of each topic the newest, unless a node has seen it and has none; `seen`: of each node the intervals,
    each of origin, first and last clock."""
    every = pl.concat(
        [each.with_columns(pl.lit(node, pl.UInt8).alias("node")) for node, each in enumerate(tables)]
    )
    newest = every.sort("topic", "clock", "origin", "node", descending=[False, True, True, False])
    newest = newest.unique("topic", keep="first", maintain_order=True)
    removed = pl.zeros(newest.height, pl.Boolean, eager=True)
    for table, intervals in zip(tables, seen, strict=True):
        absent = ~newest["topic"].is_in(table["topic"].implode())
        for origin, first, last in intervals:
            had = (newest["origin"] == origin) & newest["clock"].is_between(first, last)
            removed = removed | (absent & had)
    counts = Counter(retained=int((~removed).sum()), retained_removed=int(removed.sum()))
    return newest.filter(~removed).drop("node"), counts
