"""The queues of a cluster that was split, made one again from its nodes' dumps.

    report = reconcile(spark, ["dumps/a", "dumps/b"], "dumps/merged")

A dump is a folder of Parquet tables that `tidemq store dump --arrow` writes, in buckets of queues;
docs/store.md has its format, and what is done with which row. A task merges one bucket, so nothing is
shuffled; only the ids of the messages that stay go, by way of files, from the tasks for queues to those for
payloads. The result is such a dump, too, and is complete when it has its manifest.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.places import ENVIRONMENT, place_uri
from tidemq.pipeline.reconcile import bucket_merging, node_merging
from tidemq.pipeline.reconcile.bucket_merging import Counts

VERSION, FORMAT = 1, "2"  # of dumps, and of the rows in them, that this one reads and writes
NODE_VERSION = 4  # of dumps of a cluster's nodes, which it reads
MANIFEST = "manifest.json"
TABLES = ("owners", "subscriptions", "seen", "entries", "payloads", "retained")
GROUP_ROWS = 1 << 18
_SEEN = {"owner": pl.UInt32, "origin": pl.UInt64, "first": pl.UInt64, "last": pl.UInt64}
_IDS = "ids"  # folder of what goes from the tasks for queues to those for payloads


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node's queues had. `common` and `only` are of entries that other nodes have, too, or not."""

    dump: str
    rows: int
    common: int
    only: int
    removed: int  # entries that another node has delivered, or dropped, meanwhile


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it; docs/pipeline.md has the meaning of each figure."""

    nodes: tuple[NodeReport, ...]
    owners: int
    entries: int
    payloads: int
    retained: int
    conflicts: int
    removed: int
    expired: int
    returned: int
    done: int
    payloads_missing: int
    retained_removed: int
    stream_rows_left_out: int
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def to_text(self) -> str:
        """A table of the nodes, and a line of the result."""
        width = max(len("dump"), *(len(each.dump) for each in self.nodes))
        names = ("rows", "common", "only", "removed")
        lines = [f"{'dump':{width}}" + "".join(f"{name:>14}" for name in names)]
        for each in self.nodes:
            figures = "".join(f"{getattr(each, name):14,}" for name in names)
            lines.append(f"{each.dump:{width}}{figures}")
        rest = {name: value for name, value in asdict(self).items() if name not in ("nodes", "seconds")}
        said = (f"{name.replace('_', ' ')} {value:,}" for name, value in rest.items())
        return "\n".join([*lines, ", ".join(said), f"{self.seconds:.1f} s"])


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a dump lies: a path or a URI that driver and executors reach."""

    uri: str

    @classmethod
    def at(cls, place: str) -> Folder:
        return cls(place_uri(place))

    def open(self) -> tuple[pafs.FileSystem, str]:
        return ENVIRONMENT.open(self.uri)

    def read(self, table: str, bucket: int) -> pl.DataFrame:
        files, root = self.open()
        found = pq.read_table(f"{root}/{table}/{_file(bucket)}", filesystem=files)
        frame = pl.from_arrow(found)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def write(self, table: str, bucket: int, frames: Sequence[pl.DataFrame]) -> int:
        """One after the other; gives the number of rows."""
        files, root = self.open()
        target = f"{root}/{table}/{_file(bucket)}"
        parts = [pa.table(frame.to_arrow(compat_level=pl.CompatLevel.oldest())) for frame in frames]
        schema = _plain(parts[0].schema)
        options = {"compression": "lz4", "use_dictionary": False, "write_page_checksum": True}
        with pq.ParquetWriter(target, schema, filesystem=files, **options) as writer:
            for part in parts:
                writer.write_table(part.cast(schema), GROUP_ROWS)
        return sum(frame.height for frame in frames)

    def manifest(self) -> dict[str, Any]:
        """UsageError where there is none, or another version's."""
        files, root = self.open()
        try:
            with files.open_input_stream(f"{root}/{MANIFEST}") as file:
                manifest: dict[str, Any] = json.loads(file.read())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.uri} is no complete dump; `tidemq store dump --arrow` makes one: {error}"
            ) from error
        if manifest.get("version") not in (VERSION, NODE_VERSION) or manifest.get("format") != FORMAT:
            raise UsageError(
                f"the dump {self.uri} is another version's: "
                f"this one reads versions {VERSION} and {NODE_VERSION}"
            )
        return manifest


def _file(bucket: int) -> str:
    return f"bucket={bucket:04}.parquet"


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without the large types that Polars makes, which not every reader takes."""
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

    def of(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_large_list(kind):
            return pa.list_(of(kind.value_type))
        return plain.get(kind, kind)

    return pa.schema([(field.name, of(field.type)) for field in schema])


Work = Callable[[int], Counts]  # on a bucket


def reconcile(spark: SparkSession, dumps: Sequence[str], out: str, *, now_ms: int | None = None) -> Report:
    """Merges the dumps of the nodes into a new one; `now_ms` of the wall clock decides what has expired.

    UsageError where dumps do not go together, or `out` has something in it.
    """
    return reconcile_by(partial(_run, spark), dumps, out, now_ms=now_ms)


def reconcile_by(
    run: Callable[[int, Work], Counts], dumps: Sequence[str], out: str, *, now_ms: int | None = None
) -> Report:
    """The same without Spark: `run` has the work done for so many buckets, and adds up what it gives."""
    began = time.monotonic()
    sides, target = [Folder.at(each) for each in dumps], Folder.at(out)
    manifests = check_dumps(dumps)
    _make(target)
    buckets: int = manifests[0]["buckets"]
    now = round(time.time() * 1000) if now_ms is None else now_ms
    seen = [
        [(each["origin"], each["first"], each["last"]) for each in manifest.get("seen", [])]
        for manifest in manifests
    ]
    vectors = [{each["by"]: each["number"] for each in manifest["applied"]} for manifest in manifests
               if manifest["version"] == NODE_VERSION]  # fmt: skip
    if vectors:
        queues = run(buckets, lambda bucket: merge_node_queues(sides, target, bucket, buckets, vectors, now))
    else:
        queues = run(buckets, lambda bucket: merge_queues(sides, target, bucket, buckets, now))
    messages = run(buckets, lambda bucket: merge_messages(sides, target, bucket, buckets, seen, vectors))
    _complete(target, manifests, queues.total + messages.total)
    total = queues.total + messages.total
    names = Report.__dataclass_fields__
    figures = {name: total[name] for name in names if name not in ("nodes", "seconds")}
    figures["stream_rows_left_out"] = sum(_stream_rows(side) for side in sides)
    nodes = (
        NodeReport(dump, counts["rows"], counts["common"], counts["only"], counts["removed"])
        for dump, counts in zip(dumps, queues.nodes, strict=True)
    )
    return Report(nodes=tuple(nodes), **figures, seconds=round(time.monotonic() - began, 3))


def check_dumps(dumps: Sequence[str]) -> list[dict[str, Any]]:
    """The manifests of dumps that go together; UsageError says why others do not."""
    if not 1 <= len(dumps) <= bucket_merging.NODES_MAX:
        raise UsageError(f"accepted: 1 to {bucket_merging.NODES_MAX} dumps, not {len(dumps)}")
    manifests = [Folder.at(each).manifest() for each in dumps]
    _check_kinds(dumps, manifests)
    buckets = {each: manifest["buckets"] for each, manifest in zip(dumps, manifests, strict=True)}
    if len(set(buckets.values())) > 1:
        said = ", ".join(f"{each} {count}" for each, count in buckets.items())
        raise UsageError(f"the numbers of buckets differ ({said}): dump with the same --buckets")
    known: dict[int, str] = {}
    for each, manifest in zip(dumps, manifests, strict=True):
        other = known.setdefault(manifest["incarnation"], each)
        if other != each or dumps.count(each) > 1:
            raise UsageError(
                f"{other} and {each} are dumps of one store, or of a store and its copy: "
                "what one of them has no more cannot be told from what it never had"
            )
    return manifests


def _check_kinds(dumps: Sequence[str], manifests: Sequence[Mapping[str, Any]]) -> None:
    """All are of nodes of one cluster, or all of brokers without one; UsageError."""
    of_nodes = [manifest["version"] == NODE_VERSION for manifest in manifests]
    if not any(of_nodes):
        if len(dumps) == 1:
            raise UsageError(
                f"accepted: 2 to {bucket_merging.NODES_MAX} dumps, not 1: one is enough of a cluster's node"
            )
        return
    if not all(of_nodes):
        node, other = dumps[of_nodes.index(True)], dumps[of_nodes.index(False)]
        raise UsageError(
            f"{node} is the dump of a cluster's node, {other} of a broker without a cluster: give dumps of "
            "one kind alone"
        )
    known = [{each["by"] for each in manifest["applied"]} | {*manifest["members"], *manifest["struck"],
             manifest["incarnation"]} for manifest in manifests]  # fmt: skip
    reached, left = {0}, set(range(1, len(dumps)))
    while near := {each for each in left if any(_know(manifests, known, each, one) for one in reached)}:
        reached |= near
        left -= near
    if left:
        raise UsageError(
            f"{dumps[0]} and {dumps[min(left)]} are of two clusters: neither node knows of the other, nor of "
            "any that does"
        )


def _know(manifests: Sequence[Mapping[str, Any]], known: Sequence[set[int]], one: int, other: int) -> bool:
    return manifests[one]["incarnation"] in known[other] or manifests[other]["incarnation"] in known[one]


def _make(target: Folder) -> None:
    files, root = target.open()
    if files.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
        raise UsageError(f"{target.uri} has something in it; choose a folder that is empty or missing")
    for table in (*TABLES, "rows", _IDS):
        files.create_dir(f"{root}/{table}")


def _run(spark: SparkSession, buckets: int, work: Work) -> Counts:
    """Has executors do it for each bucket."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pydict({"counts": [work(bucket).to_json()]})

    counts = Counts()
    for row in spark.range(0, buckets, 1, buckets).mapInArrow(task, "counts string").collect():
        counts.add(Counts.from_json(row.counts))
    return counts


def merge_queues(sides: Sequence[Folder], target: Folder, bucket: int, buckets: int, now_ms: int) -> Counts:
    """The owners of one bucket, and what they have. In an executor."""

    def read(table: str) -> list[pl.DataFrame]:
        return [side.read(table, bucket) for side in sides]

    owners = bucket_merging.merge_owners(read("owners"))
    seen = read("seen")
    entries, counts = bucket_merging.merge_entries(read("entries"), seen, owners, now_ms)
    _write_entries(target, bucket, buckets, entries)
    counts.total["owners"] = target.write("owners", bucket, [owners.table.drop("side")])
    subscriptions = bucket_merging.merge_subscriptions(read("subscriptions"), owners)
    counts.total["subscriptions"] = target.write("subscriptions", bucket, [subscriptions])
    counts.total["seen"] = target.write("seen", bucket, [bucket_merging.merge_seen(seen, owners)])
    return counts


def merge_node_queues(
    sides: Sequence[Folder],
    target: Folder,
    bucket: int,
    buckets: int,
    vectors: Sequence[Mapping[int, int]],
    now_ms: int,
) -> Counts:
    """The same of nodes of a cluster, which had applied these records of each other."""

    def read(table: str) -> list[pl.DataFrame]:
        return [side.read(table, bucket) for side in sides]

    owners = node_merging.merge_owners(read("owners"), read("ends"), vectors)
    entries, counts = node_merging.merge_entries(read("entries"), read("removed"), owners, vectors, now_ms)
    subscriptions = node_merging.merge_subscriptions(read("subscriptions"), owners, vectors)
    table, numbers = node_merging.plain_owners(owners, entries)
    renumbered = [
        each.with_columns(numbers.gather(each["owner"]).alias("owner")) for each in (entries, subscriptions)
    ]
    _write_entries(target, bucket, buckets, renumbered[0])
    counts.total["owners"] = target.write("owners", bucket, [table])
    counts.total["subscriptions"] = target.write("subscriptions", bucket, [renumbered[1]])
    target.write("seen", bucket, [pl.DataFrame(schema=_SEEN)])  # a store that is new claims nothing
    return counts


def _write_entries(target: Folder, bucket: int, buckets: int, entries: pl.DataFrame) -> None:
    """And the ids of their messages, for those who look for these."""
    ids = entries.select("clock", "origin", place=(pl.col("clock") // 64 % buckets))
    ids = ids.sort("place").with_columns(pl.col("place").set_sorted())
    bounds = ids["place"].search_sorted(pl.Series(range(buckets + 1), dtype=pl.UInt64))
    slices = (ids.slice(first, end - first) for first, end in pairwise(bounds))
    _write_ids(target, bucket, slices)
    target.write("entries", bucket, [entries])


def merge_messages(
    sides: Sequence[Folder],
    target: Folder,
    bucket: int,
    buckets: int,
    seen: Sequence[Sequence[tuple[int, int, int]]],
    vectors: Sequence[Mapping[int, int]],
) -> Counts:
    """One bucket of payloads and retained messages; `vectors` of nodes of a cluster. In an executor."""
    ids = pl.concat([_read_ids(target, each, bucket) for each in range(buckets)])
    payloads, counted = bucket_merging.merge_payloads([side.read("payloads", bucket) for side in sides], ids)
    target.write("payloads", bucket, payloads)
    tables = [side.read("retained", bucket) for side in sides]
    if vectors:
        retained, kept = node_merging.merge_retained(tables, vectors)
    else:
        retained, kept = bucket_merging.merge_retained(tables, seen)
    target.write("retained", bucket, [retained])
    return Counts(counted + kept)


def _write_ids(target: Folder, bucket: int, slices: Iterable[pl.DataFrame]) -> None:
    """An Arrow file with a batch for each bucket of payloads."""
    files, root = target.open()
    schema = pa.schema([("clock", pa.uint64()), ("origin", pa.uint64())])
    with (
        files.open_output_stream(f"{root}/{_IDS}/{bucket}") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        for each in slices:
            columns = [each[name].rechunk().to_arrow() for name in schema.names]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _read_ids(target: Folder, bucket: int, place: int) -> pl.DataFrame:
    files, root = target.open()
    with files.open_input_file(f"{root}/{_IDS}/{bucket}") as file:
        frame = pl.from_arrow(pa.ipc.open_file(file).get_batch(place))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _stream_rows(side: Folder) -> int:
    rows = side.read("rows", 0)
    return int((rows["family"] != "meta").sum())


def _complete(target: Folder, manifests: Sequence[Mapping[str, Any]], counts: Mapping[str, int]) -> None:
    """What makes it a store of its own, with an incarnation that none of the nodes has; the manifest last."""
    incarnation, clock = secrets.token_bytes(8), max(manifest["clock"] for manifest in manifests)
    meta = {"format": FORMAT.encode(), "incarnation": incarnation, "clock": clock.to_bytes(8)}
    keys, values = [key.encode() for key in meta], list(meta.values())
    rows = target.write("rows", 0, [pl.DataFrame({"family": ["meta"] * 3, "key": keys, "value": values})])
    files, root = target.open()
    files.delete_dir(f"{root}/{_IDS}")
    seen = {
        (each["origin"], each["first"], each["last"])
        for manifest in manifests
        for each in manifest.get("seen", [])
    }
    manifest = {
        "version": VERSION,
        "format": FORMAT,
        "buckets": manifests[0]["buckets"],
        "incarnation": int.from_bytes(incarnation),
        "clock": clock,
        "seen": [dict(zip(("origin", "first", "last"), each, strict=True)) for each in sorted(seen)],
        "rows": {table: counts[table] for table in TABLES} | {"rows": rows},
    }
    with files.open_output_stream(f"{root}/{MANIFEST}") as file:
        file.write(json.dumps(manifest, indent=1).encode())
