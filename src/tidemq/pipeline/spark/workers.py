"""What a session needs for sources in Python: workers that have all, and a thread that finds them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tidemq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HAS_ALL = "import importlib.util as u; raise SystemExit(not all(map(u.find_spec, ('tidemq', 'pyarrow'))))"


def check_workers(spark: SparkSession) -> None:
    """UsageError where the session's workers run a Python without TideMQ, as Spark does that is not told by
    PYSPARK_PYTHON. Of Spark Connect that is the server's, and cannot be seen from here.
    """
    if not hasattr(spark, "sparkContext"):
        return
    named = spark.sparkContext.pythonExec
    python = shutil.which(named)
    if python == sys.executable:
        return
    if python is None or subprocess.run([python, "-c", _HAS_ALL], capture_output=True).returncode:
        raise UsageError(
            f"Spark's workers run {named}, which has no TideMQ; set PYSPARK_PYTHON={sys.executable} before "
            "the session begins"
        )


def make_active(spark: SparkSession) -> None:
    """In this thread. Spark looks for sinks in Python in the active session alone, and makes none active in
    threads after the first. Nothing with Spark Connect, whose server has its own threads.
    """
    if hasattr(spark, "sparkContext"):
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
