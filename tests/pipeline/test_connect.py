"""Spark Connect: the job runs on a server that others keep, started from the pip package as well."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from pipeline.streaming import TIDEMQ, Streaming
from pipeline_crash.cluster import QUICK_JAVA, environment
from waiting import WAIT_S

from tidemq.client.streams import StreamReader
from tidemq.testing.ports import free_port

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from tidemq.pipeline.sources.stream import register

master, url, mqtt, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(master).getOrCreate()
register(spark)
options = {"url": url, "stream": "remote"}
print(spark.read.format("tidemq").options(**options, end="50").load().selectExpr("sum(offset)").first()[0])
followed = spark.readStream.format("tidemq").options(**options).load()
copies = followed.where("topic = 'remote/a'").selectExpr("'remote/copy' topic", "payload")
write = copies.writeStream.format("tidemq").options(url=mqtt, checkpointLocation=checkpoint, publisherId="c")
write.trigger(availableNow=True).start().awaitTermination()
"""
OVERLOADED = "Python worker failed to connect back"  # within Spark's ten seconds
RULES = '[[rules]]\nname = "number"\nfilter = "connect/+"\nformat = "number"\n'


@pytest.fixture
def master(install: Callable[[str, str], None], tmp_path: Path) -> Iterator[str]:
    """A server's address as --master has it."""
    install("java", "default-jre-headless")
    port, log = free_port(), tmp_path / "server.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": 1,
        "spark.ui.enabled": "false",
    }
    command = [SUBMIT, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", "local[1]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            cwd=tmp_path,
        )
    deadline = time.monotonic() + WAIT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    yield f"sc://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def test_a_job_runs_on_a_connect_server_and_goes_on_from_its_checkpoint(
    streaming: Streaming, master: str, tmp_path: Path
) -> None:
    streaming.declare("connect")
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    command = [*TIDEMQ, "pipeline", "ingest", "connect", str(tmp_path / "lake"), "--url", streaming.url]
    command += ["--master", master, "--rules", str(rules), "--once"]
    without_java = os.environ | {"JAVA_HOME": "/nowhere", "PATH": ""}
    for begin in (0, 50):
        streaming.publish([("connect/a", b"%d" % number) for number in range(begin, begin + 50)])
        streaming.publish([("connect/a", b"x")])
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=without_java)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "Warning" not in done.stderr
    values = DeltaTable(tmp_path / "lake/connect/silver/number").to_pyarrow_table()["value"].to_pylist()
    assert sorted(values) == list(range(100))
    assert DeltaTable(tmp_path / "lake/connect/bronze").to_pyarrow_table().num_rows == 102
    assert DeltaTable(tmp_path / "lake/connect/dead_letters").to_pyarrow_table().num_rows == 2


def test_the_source_and_the_sink_run_in_a_connect_session(
    streaming: Streaming, master: str, tmp_path: Path
) -> None:
    streaming.declare("remote")
    payloads = [b"%d" % number for number in range(50)]
    streaming.publish([("remote/a", payload) for payload in payloads])
    command = [sys.executable, "-c", PROGRAM, master, streaming.url]
    command += [f"mqtt://127.0.0.1:{streaming.broker.port}", str(tmp_path / "checkpoint")]
    without_java = os.environ | {"JAVA_HOME": "/nowhere", "PATH": ""}
    done = None
    while done is None or OVERLOADED in done.stderr:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=without_java)
    assert (done.returncode, done.stdout) == (0, f"{sum(range(50))}\n"), done.stderr
    rows = [row for batch in StreamReader(streaming.url, "remote").read(0) for row in batch.to_pylist()]
    assert [row["payload"] for row in rows if row["topic"] == "remote/copy"] == payloads
