"""First deliveries: QoS 1 messages that came again are left out of what is decoded.

A message that a publisher has sent again (`dup`) is left out when bronze has its first delivery: one of the
same client, packet identifier, topic and payload, at most an hour before, in the same stream or that of
another node. One whose first delivery never came stays: who drops all that are marked loses messages.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemq.pipeline.lake.table import Table

REPEATED_WITHIN = timedelta(hours=1)
_SAME = ("client_id", "packet_id", "topic", "payload")


def first_deliveries(frame: DataFrame, bronze: Table) -> DataFrame:
    """Without the messages that came again."""
    marked = frame.where("dup and packet_id is not null")
    since = marked.agg(F.min("received")).first()
    if since is None or since[0] is None:
        return frame
    seconds = int(REPEATED_WITHIN.total_seconds())
    bounds = {"received": (since[0].astimezone() - REPEATED_WITHIN, None)}
    earlier = bronze.read(frame.sparkSession, [*_SAME, "epoch", "offset", "received"], bounds)
    earlier = earlier.select(
        *_SAME,
        F.col("epoch").alias("before_epoch"),
        F.col("offset").alias("before"),
        F.col("received").alias("earlier"),
    )
    again = (
        marked.select(*_SAME, "epoch", "offset", "received")
        .join(earlier, list(_SAME))
        .where("if(before_epoch = epoch, before < offset, earlier < received)")
        .where(F.expr(f"earlier >= received - interval {seconds} seconds"))
        .select("epoch", "offset")
        .distinct()
    )
    return frame.join(again, ["epoch", "offset"], "left_anti").select(*frame.columns)
