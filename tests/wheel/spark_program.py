"""What a Spark job of somebody else does, in an environment with the extra `spark` alone: reads a stream and
follows it, publishes rows. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from tidemq.pipeline.sources.stream import register

URL, CAFILE, MQTT, FOLDER = sys.argv[1:]
BESIDE = {"polars", "matplotlib", "deltalake", "pandas", "cbor2", "msgspec", "duckdb", "aiohttp"}


def follow(frame: DataFrame, checkpoint: str, **sink: str) -> list[int]:
    """The offsets that a query gets from where its checkpoint is; or their messages are published."""
    found: list[int] = []
    write = frame.writeStream.option("checkpointLocation", f"{FOLDER}/{checkpoint}")
    if sink:
        write = write.format("tidemq").options(url=MQTT, **sink)
    else:
        write = write.foreachBatch(lambda rows, _: found.extend(row.offset for row in rows.collect()))
    write.trigger(availableNow=True).start().awaitTermination()
    return sorted(found)


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    options = {"url": URL, "stream": "plant", "cafile": CAFILE, "rowsPerPartition": "40"}
    read = spark.read.format("tidemq").options(**options).load()
    followed = spark.readStream.format("tidemq").options(**options).load()
    rows = sorted((row.offset, row.topic, bytes(row.payload).decode()) for row in read.collect())
    first, again = follow(followed, "a"), follow(followed, "a")
    messages = read.selectExpr("concat('copy/', topic) topic", "payload")
    messages.write.format("tidemq").options(url=MQTT, publisherId="batch", batchId="1").mode("append").save()
    follow(followed.selectExpr("concat('copy/', topic) topic", "payload"), "b", publisherId="stream")
    limited = ""
    try:
        follow(spark.readStream.format("tidemq").options(**options, maxRowsPerBatch="30").load(), "c")
    except Exception as error:  # noqa: BLE001  of Spark
        limited = str(error)
    places = [Path(each) for each in sys.path if each.endswith("site-packages")]
    report = {
        "spark": pyspark.__version__,
        "rows": rows,
        "first": first,
        "again": again,
        "limited": limited,
        "beside": sorted(name for name in BESIDE for place in places if (place / name).exists()),
        "home": sys.modules["tidemq"].__file__,
    }
    print(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main()
