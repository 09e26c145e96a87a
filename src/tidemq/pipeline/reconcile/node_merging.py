"""What the nodes of a cluster kept becomes one, bucket by bucket, with Polars, as the nodes themselves would
have done it by applying each other's records; docs/pipeline.md has the rules.

A function here takes a list with a table for each node, in the order in which the nodes were given, as they
lie in a dump of a node, with `vectors`: which records each had applied. It gives tables of a plain dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemq.pipeline.reconcile.bucket_merging import (
    COUNTED,
    IDLE,
    IN_FLIGHT,
    RELEASED,
    SENT,
    Counts,
    Owners,
)
from tidemq.pipeline.reconcile.ended_sessions import (
    Client,
    End,
    Record,
    Session,
    Vector,
    going_on,
    hidden_upto,
    live_ends,
)

_RETAIN = 1
_NOWHERE = 255  # `side` of an owner that has no session
_ID = ["clock", "origin"]
_KEY = ["owner", *_ID]
_RECORD = ["by", "number"]
_EPOCH = ["epoch_clock", "epoch_origin"]
_CONNECTED = ["connected_clock", "connected_origin"]
_U64 = pl.UInt64


@dataclass(frozen=True, slots=True)
class NodeOwners:
    """Of all nodes. In `every` the `side` of a session is the node whose row goes on, of a group 0."""

    every: Owners
    hidden: pl.DataFrame  # `owner`, `by`, `upto`: what these records made went with the end of a session


def merge_owners(
    tables: Sequence[pl.DataFrame], ends: Sequence[pl.DataFrame], vectors: Sequence[Vector]
) -> NodeOwners:
    """Of the sessions of a client that of its last CONNECT, whole, unless it has ended."""
    of_nodes = [each.with_columns(pl.lit(node, pl.UInt8).alias("node")) for node, each in enumerate(tables)]
    every = pl.concat(of_nodes).drop("owner")
    places = every.select("kind", "name").unique().sort("kind", "name").with_row_index("number_of")
    numbers = [
        each.join(places, on=["kind", "name"], how="left").sort("owner")["number_of"] for each in tables
    ]
    sides, hidden = _decide(tables, ends, numbers, places["kind"].eq("shared").to_list(), vectors)
    side = pl.DataFrame({"node": sides}, schema={"node": pl.UInt8})
    table = pl.concat([places, side], how="horizontal").join(
        every, on=["kind", "name", "node"], how="left", maintain_order="left"
    )
    table = table.rename({"number_of": "owner", "node": "side"})
    owners = Owners(table, numbers, pl.zeros(table.height, pl.UInt16, eager=True))
    return NodeOwners(owners, hidden)


def _decide(
    tables: Sequence[pl.DataFrame],
    ends: Sequence[pl.DataFrame],
    numbers: Sequence[pl.Series],
    shared: Sequence[bool],
    vectors: Sequence[Vector],
) -> tuple[list[int], pl.DataFrame]:
    """The side of each owner, and what is hidden."""
    clients = [Client() for _ in shared]
    for node, each in enumerate(tables):
        rows = each.filter(pl.col("epoch_clock").is_not_null()).select(
            "owner", *_CONNECTED, *_EPOCH, *_RECORD
        )
        for owner, came, whose, clock, origin, by, number in rows.iter_rows():
            session = Session((came, whose), (clock, origin), Record(by, number))
            clients[numbers[node][owner]].sessions[node] = session
        for owner, *row in ends[node].iter_rows():
            record, end = _end(row)
            clients[numbers[node][owner]].ends.setdefault(node, {})[record] = end
    nodes = {by for vector in vectors for by in vector}
    sides = [0] * len(shared)
    hidden: dict[tuple[int, int], int] = {}
    for owner, client in enumerate(clients):
        if shared[owner]:
            continue
        counting = live_ends(client, vectors)
        side = going_on(client, counting, vectors)
        sides[owner] = _NOWHERE if side is None else side
        for end in counting.values():
            for by in nodes:
                hidden[owner, by] = max(hidden_upto(end, by), hidden.get((owner, by), 0))
    rows_of = [(owner, by, upto) for (owner, by), upto in hidden.items()]
    schema = {"owner": pl.UInt32, "by": _U64, "upto": _U64}
    return sides, pl.DataFrame(rows_of, schema=schema, orient="row")


def _end(row: Sequence[object]) -> tuple[Record, End]:
    by, number, clock, origin, seen_by, seen, known_by, known_at, *of_over = row
    over_clock, over_origin, over_by, over_number = of_over
    over = None
    if over_clock is not None:
        over = (over_clock, over_origin), Record(over_by, over_number)  # type: ignore[arg-type]
    vector = dict(zip(seen_by, seen, strict=True))  # type: ignore[call-overload]  # as the schema says
    known = None if known_by is None else dict(zip(known_by, known_at, strict=True))  # type: ignore[call-overload]
    return Record(by, number), End((clock, origin), vector, known, over)  # type: ignore[arg-type]


def _covered(vector: Mapping[int, int], by: str = "by", number: str = "number") -> pl.Expr:
    """Whether the vector covers a record; of `by` 0 and `number` 0 it does."""
    return _applied(vector, by) >= pl.col(number)


def _applied(vector: Mapping[int, int], by: str) -> pl.Expr:
    if not vector:
        return pl.lit(0, _U64)
    old, new = pl.Series(list(vector), dtype=_U64), pl.Series(list(vector.values()), dtype=_U64)
    return pl.col(by).replace_strict(old, new, default=0, return_dtype=_U64)


def _bits(vectors: Sequence[Vector], by: str = "by", number: str = "number") -> pl.Expr:
    """Bits of the nodes that had applied a record."""
    parts = [
        _covered(vector, by, number).cast(pl.UInt16) * (1 << node) for node, vector in enumerate(vectors)
    ]
    return pl.sum_horizontal(parts).cast(pl.UInt16)


def _together(tables: Sequence[pl.DataFrame], owners: NodeOwners) -> pl.DataFrame:
    every = pl.concat([owners.every.renumbered(each, node) for node, each in enumerate(tables)])
    bit = pl.Series([1 << node for node in range(16)], dtype=pl.UInt16).gather(every["node"]).alias("bit")
    return every.with_columns(bit)


def _unhidden(rows: pl.DataFrame, owners: NodeOwners) -> pl.DataFrame:
    """What has not gone with the end of a session."""
    there = rows.join(owners.hidden, on=["owner", "by"], how="left", maintain_order="left")
    return there.filter(pl.col("upto").is_null() | (pl.col("number") > pl.col("upto"))).drop("upto")


def _owned(rows: pl.DataFrame, owners: NodeOwners) -> pl.DataFrame:
    """What has an owner still."""
    return rows.filter(owners.every.table["side"].gather(rows["owner"]) != _NOWHERE)


def merge_subscriptions(
    tables: Sequence[pl.DataFrame], owners: NodeOwners, vectors: Sequence[Vector]
) -> pl.DataFrame:
    """Of each the last change, unless a node has had it and forgotten it, as all knew of its end; without
    `BACKLOG` in `options` where a node has not that.
    """
    every = _newest(_together(tables, owners), ["owner", "topic_filter"], "options", vectors)
    there = _owned(_unhidden(every, owners), owners).filter(pl.col("options").is_not_null())
    return there.select("owner", "topic_filter", "options", "subscription_id")


def _newest(every: pl.DataFrame, keys: Sequence[str], then: str, vectors: Sequence[Vector]) -> pl.DataFrame:
    """Of rows with the same keys that of the last change which no node has forgotten; of those of one time
    that with the least of `then`, or without it.
    """
    holders = pl.col("bit").unique().sum().cast(pl.UInt16).over(keys)
    every = every.filter((_bits(vectors) & ~holders) == 0)
    every = every.sort(*keys, *_ID, then, descending=[False] * len(keys) + [True] * 2 + [False])
    return every.unique(keys, keep="first", maintain_order=True)


def merge_retained(
    tables: Sequence[pl.DataFrame], vectors: Sequence[Vector]
) -> tuple[pl.DataFrame, Counter[str]]:
    """Of each topic the last change, unless there is no message any more."""
    every = pl.concat(
        [
            each.with_columns(pl.lit(node, pl.UInt8).alias("node"), pl.lit(1 << node, pl.UInt16).alias("bit"))
            for node, each in enumerate(tables)
        ]
    )
    there = _newest(every, ["topic"], "message", vectors).filter(pl.col("message").is_not_null())
    had = every.filter(pl.col("message").is_not_null())["topic"].n_unique()
    return (
        there.select("topic", *_ID, "message"),
        Counter(retained=there.height, retained_removed=had - there.height),
    )


def merge_entries(
    tables: Sequence[pl.DataFrame],
    removals: Sequence[pl.DataFrame],
    owners: NodeOwners,
    vectors: Sequence[Vector],
    now_ms: int,
) -> tuple[pl.DataFrame, Counts]:
    """The entries that stay, in the order of owners and messages."""
    every = _together(tables, owners)
    adds = _adds(every, removals, owners, vectors)
    stay = _owned(_unhidden(adds, owners), owners)
    there = stay.sort(*_KEY, *_RECORD).unique(_KEY, keep="first", maintain_order=True)
    expired = (there["expires_at_ms"] != 0) & (there["expires_at_ms"] <= now_ms)
    counts = _counted(every, there, len(tables))
    said = every.join(stay, on=[*_KEY, *_RECORD], how="semi", maintain_order="left")
    kept = _with_state(there.filter(~expired), said, owners, vectors)
    flew = every.filter(pl.col("status") == IN_FLIGHT).select(_KEY).unique()
    returned = kept.filter(pl.col("status") == IDLE).join(flew, on=_KEY, how="semi").height
    counts.total.update(expired=int(expired.sum()), entries=kept.height, returned=returned)
    return kept, counts


def _adds(
    every: pl.DataFrame,
    removals: Sequence[pl.DataFrame],
    owners: NodeOwners,
    vectors: Sequence[Vector],
) -> pl.DataFrame:
    """What records have added and no node has removed."""
    said = ["flags", "qos", "message_bytes", "expires_at_ms", "subscription_ids"]
    adds = every.group_by(*_KEY, *_RECORD).agg(pl.col("bit").sum().alias("holders"), pl.col(said).first())
    adds = adds.with_columns(pl.col("holders").cast(pl.UInt16))
    adds = adds.filter((_bits(vectors) & ~pl.col("holders")) == 0)
    # who holds it although he knows of a removal has it from somebody who knew of it, too
    known = _together(removals, owners).select(*_KEY, _bits(vectors).alias("knows")).unique()
    against = adds.join(known, on=_KEY).filter((pl.col("holders") & pl.col("knows")) == 0)
    return adds.join(against, on=[*_KEY, *_RECORD], how="anti")


def _with_state(
    there: pl.DataFrame, every: pl.DataFrame, owners: NodeOwners, vectors: Sequence[Vector]
) -> pl.DataFrame:
    """In flight is what the session that goes on has in flight, by what is left of what it sent; of a group,
    as it was given out last. What another one had so waits again.
    """
    of_session = owners.every.table["kind"].gather(every["owner"]).eq("session")
    near = owners.every.table["side"].gather(every["owner"]) == every["node"]
    known = pl.coalesce(
        pl.when(pl.col("node") == node).then(_applied(vector, "epoch_origin"))
        for node, vector in enumerate(vectors)
    )
    states = every.with_columns(known.alias("known")).filter(near | ~of_session)
    states = states.sort(*_KEY, *_EPOCH, "known", "status", descending=[False] * 3 + [True] * 4)
    states = states.unique(_KEY, keep="first", maintain_order=True).select(
        *_KEY, "status", "sequence", (pl.col("flags") & RELEASED).alias("released")
    )
    sent = every.filter(pl.col("flags") & SENT != 0).select(_KEY).unique()
    sent = sent.with_columns(pl.lit(SENT, pl.UInt8).alias("sent"))
    kept = there.join(states, on=_KEY, how="left", maintain_order="left")
    kept = kept.join(sent, on=_KEY, how="left", maintain_order="left")
    flags = (
        (pl.col("flags") & _RETAIN) | COUNTED | pl.col("released").fill_null(0) | pl.col("sent").fill_null(0)
    )
    return kept.select(
        *_KEY,
        pl.col("status").fill_null(IDLE).cast(pl.UInt8),
        flags.cast(pl.UInt8).alias("flags"),
        "qos",
        "message_bytes",
        "expires_at_ms",
        pl.col("sequence").fill_null(0),
        "subscription_ids",
    )


def _counted(every: pl.DataFrame, there: pl.DataFrame, nodes: int) -> Counts:
    """Entries of each node, and what became of them."""
    state = pl.struct("status", "sequence", pl.col("flags") & RELEASED)
    entries = every.group_by(_KEY).agg(
        pl.col("bit").unique().sum().alias("bits"), state.n_unique().alias("states")
    )
    entries = entries.join(there.select(*_KEY, stays=pl.lit(True)), on=_KEY, how="left")
    gone = entries["stays"].is_null()
    counts = Counts(Counter(conflicts=int((entries["states"] > 1).sum()), removed=int(gone.sum())))
    for node in range(nodes):
        has = entries["bits"] & (1 << node) != 0
        only = int((entries["bits"] == 1 << node).sum())
        rows = int(has.sum())
        counts.nodes.append(
            Counter(rows=rows, only=only, common=rows - only, removed=int((has & gone).sum()))
        )
    return counts


def plain_owners(owners: NodeOwners, entries: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Sessions that go on, and groups for which something waits, numbered from 0; and by the number that an
    owner had until now its new one.
    """
    table = owners.every.table
    waiting = table["owner"].is_in(entries["owner"].unique().implode())
    stays = (table["side"] != _NOWHERE) & ((table["kind"] == "session") | waiting)
    numbers = (stays.cast(pl.UInt32).cum_sum() - 1).cast(pl.UInt32)
    kept = table.filter(stays).drop("owner", "side", *_RECORD, *_EPOCH)
    return kept.with_row_index("owner"), numbers
