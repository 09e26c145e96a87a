"""Spark Connect: the job runs on a server that others keep, started from the pip package as well."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from pipeline.streaming import TIDEMQ, Streaming
from pipeline_crash.cluster import QUICK_JAVA, environment
from waiting import WAIT_S

from tidemq.testing.ports import free_port

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
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
