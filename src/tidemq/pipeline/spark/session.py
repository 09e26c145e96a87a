"""A Spark session for a job of the pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.spark.java import use_java

SETTINGS = {"spark.sql.session.timeZone": "UTC"}
QUIET = {"spark.ui.showConsoleProgress": "false"}  # of Java that is started here


@contextmanager
def spark_session(master: str, name: str, settings: Mapping[str, str] = {}) -> Iterator[SparkSession]:
    """A quiet session on `master`, with these settings; UsageError without Java, or where Spark does not
    start.

    `spark-defaults.conf` and SPARK_* variables count as ever. sc://host:15002 is Spark Connect.
    """
    remote = master.startswith("sc://")
    if not remote:
        use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.remote(master) if remote else SparkSession.builder.master(master)
    for key, value in {**SETTINGS, **({} if remote else QUIET), **settings}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.appName(name).getOrCreate()
    except Exception as error:  # of Spark, of Java's gateway, of the network: they have no common class
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"Spark does not start on {master}: {first}") from error
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        with suppress(Py4JError, ConnectionError):  # of a Java process that was killed
            spark.stop()
