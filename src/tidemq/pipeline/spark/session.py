"""A Spark session for a job of the pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.places import spark_uri
from tidemq.pipeline.spark.java import use_java

SETTINGS = {"spark.sql.session.timeZone": "UTC"}
_CONNECTORS = {"s3a": "hadoop-aws", "abfss": "hadoop-azure", "gs": "gcs-connector"}
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


def check_checkpoint(spark: SparkSession, place: str) -> None:
    """UsageError where Spark's Java has no file system for a place. With Spark Connect the server has it, or
    not, and the query says so.
    """
    uri, java = spark_uri(place), getattr(spark, "_jvm", None)
    if java is None:
        return
    try:
        hadoop = java.org.apache.hadoop
        hadoop.fs.FileSystem.getFileSystemClass(urlsplit(uri).scheme or "file", hadoop.conf.Configuration())
    except Py4JJavaError as error:
        raise UsageError(
            f"Spark has no connector for the checkpoint {uri}: give --checkpoint a folder of the driver's "
            f"machine, or start Spark with Hadoop's {_CONNECTORS.get(urlsplit(uri).scheme, 'connector')}"
        ) from error
