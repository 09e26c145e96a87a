"""What Spark finds in the image of examples/kubernetes. Nobody builds it here; its parts are tried alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "kubernetes"
SPARK = Path(pyspark.__file__).parent


@pytest.fixture
def echo(tmp_path: Path) -> dict[str, str]:
    """An environment in which java and spark-submit say what they were told, an argument in a line."""
    (tmp_path / "bin").mkdir()
    for name in ("java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    return os.environ | {"SPARK_HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


def told(arguments: list[str], environment: dict[str, str]) -> list[str]:
    command = ["sh", str(HERE / "entrypoint.sh"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_driver_pod_runs_spark_submit(echo: dict[str, str]) -> None:
    given = [
        "--properties-file",
        "/opt/a",
        "--class",
        "org.apache.spark.deploy.PythonRunner",
        "job.py",
        "a b",
    ]
    said = told(["driver", *given], echo | {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"})
    bind = ["--conf", "spark.driver.bindAddress=10.0.0.7"]
    assert said == ["spark-submit", "--deploy-mode", "client", *bind, *given]


def test_an_executor_pod_runs_spark_s_executor(
    echo: dict[str, str], install: Callable[[str, str], None]
) -> None:
    """With options that Spark's executor knows, and those of Java in their order."""
    install("java", "default-jre-headless")
    values = {
        "SPARK_JAVA_OPT_0": "-Dspark.a=1",
        "SPARK_JAVA_OPT_1": "-Dspark.b=two words",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "ingest-exec-3",
        "SPARK_CONF_DIR": "/opt/spark/conf",
    }
    said = told(["executor"], echo | values)
    jars = f"/opt/spark/conf:{echo['SPARK_HOME']}/jars/*"
    java = ["java", "-Dspark.a=1", "-Dspark.b=two words", "-Xms2g", "-Xmx2g", "-cp", jars]
    assert said[: len(java)] == java
    executor, *options = said[len(java) :]
    usage = subprocess.run(
        ["java", "-cp", f"{SPARK}/jars/*", executor, "--help"], capture_output=True, text=True
    )
    known = re.findall(r"^ +(--\w[\w-]*)", usage.stderr + usage.stdout, re.MULTILINE)
    assert known
    assert set(options[::2]) <= set(known)
    assert set(options[1::2]) <= set(values.values())


def test_anything_else_runs_as_it_stands(echo: dict[str, str]) -> None:
    assert told(["java", "-version"], echo) == ["java", "-version"]


def test_the_job_is_the_command_and_knows_the_deployment_s_flags() -> None:
    command = [sys.executable, str(HERE / "job.py"), "pipeline", "ingest", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    flags = re.findall(r"- (--[a-z-]+)=", (HERE / "ingest.yaml").read_text())
    assert "--rules" in flags
    assert all(flag in done.stdout for flag in flags)


def test_what_the_image_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (HERE / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((ROOT / source).exists() for line in copied for source in line.split())
