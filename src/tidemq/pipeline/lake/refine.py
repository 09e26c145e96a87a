"""A batch of messages, which bronze has, into the tables of the rules."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemq.pipeline.decode.decoding import (
    dead_letters,
    decode,
    inferred,
    late,
    late_rows,
    matching,
    rows,
)
from tidemq.pipeline.decode.payload_rules import EVENT_TIME, KEY, PLACE, Rule
from tidemq.pipeline.decode.sparkplug import BIRTH_COLUMNS, BIRTHS, Births
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.redelivery import first_deliveries
from tidemq.pipeline.lake.table import Table


def refine(messages: DataFrame, ingest: Ingest, epoch: int) -> None:
    """Brings a batch that bronze has into the tables of the rules, and of dead letters."""
    kept = first_deliveries(messages, ingest.bronze)
    dead = []
    held = []
    try:
        for rule in ingest.rules:
            decoded = _decoded(rule, matching(rule, kept), ingest, epoch).persist()  # for several tables
            held.append(decoded)
            found = rows(decoded, rule)
            ingest.silver(rule).append(found.where(~late(rule)), ingest.stream, epoch, widen=rule.infers)
            if rule.watermark:
                ingest.late(rule).append(late_rows(found, rule), ingest.stream, epoch, widen=rule.infers)
            dead.append(dead_letters(decoded, rule))
        ingest.dead_letters.append(reduce(DataFrame.unionAll, dead), ingest.stream, epoch)
    finally:
        for frame in held:
            frame.unpersist()


def _decoded(rule: Rule, found: DataFrame, ingest: Ingest, epoch: int) -> DataFrame:
    """What `decode` gives, by what the rule's tables know from earlier batches."""
    if rule.format == "sparkplug":
        births = _births(rule, found, ingest.births(rule), ingest.stream, epoch)
        return decode(rule, found, rule.struct(), births)
    if not rule.infers:
        return decode(rule, found, rule.struct(), Births())
    known = ingest.silver(rule).schema() or StructType()
    fixed = {*KEY, PLACE, EVENT_TIME, "date"}
    columns = StructType([each for each in known.fields if each.name not in fixed])
    return decode(rule, found, inferred(rule, found, columns), Births())


def _births(rule: Rule, found: DataFrame, table: Table, stream: str, epoch: int) -> Births:
    """The birth certificates that count for these messages; those among them are in the table then."""
    now = found.where(F.expr("split_part(topic, '/', 3)").isin(*BIRTHS))
    metrics = rows(decode(rule, now, rule.struct(), Births()), rule)
    table.append(metrics.select(*KEY, *BIRTH_COLUMNS, "date"), stream, epoch)
    if table.schema() is None:
        return Births()
    nodes = found.selectExpr(
        "split_part(topic, '/', 2) as group_id", "split_part(topic, '/', 4) as edge_node_id", "offset"
    )
    nodes = nodes.groupBy("group_id", "edge_node_id").agg(F.min("offset").alias("first"))
    columns = ["epoch", "offset", *BIRTH_COLUMNS]
    births = table.read(found.sparkSession, columns, {"epoch": (epoch, epoch)}).where(F.col("epoch") == epoch)
    births = births.join(nodes, ["group_id", "edge_node_id"])
    # a node's own birth ends what was known of it before
    own = births.where("message_type = 'NBIRTH' and offset < first")
    own = own.groupBy("group_id", "edge_node_id").agg(F.max("offset").alias("since"))
    births = births.join(own, ["group_id", "edge_node_id"], "left").where("offset >= coalesce(since, 0)")
    return Births(row.asDict() for row in births.select("offset", *BIRTH_COLUMNS).collect())
