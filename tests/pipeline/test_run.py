"""A whole pipeline from one file, in one JVM: each job goes on whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pipeline.alarmed import Receiver
from pipeline.lake import rows
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from waiting import wait_until

from tidemq.errors import ConfigError
from tidemq.pipeline.service import supervising
from tidemq.pipeline.service.board import Board
from tidemq.pipeline.service.pipeline_file import Plan, load_pipeline
from tidemq.pipeline.service.supervising import Job, jobs_of, run_jobs
from tidemq.pipeline.spark.jobs import JavaGoneError, JobError
from tidemq.testing.ports import free_port

pytestmark = pytest.mark.timeout(400)

FILE = """
url = "{url}"
tables = "{tables}"
master = "local[2]"

[brokers.here]
url = "mqtt://127.0.0.1:{port}"

[maintenance]
every_s = 1

[[streams]]
name = "{stream}"
trigger_s = 0.2

[[streams.rules]]
name = "level"
filter = "{stream}/+/level"
format = "number"

[streams.alerts]
to = "here"
start = "earliest"
trigger_s = 0.2

[[streams.alerts.rules]]
name = "high"
filter = "{stream}/+/level"
kind = "threshold"
above = 5

[[streams.sinks]]
name = "mirror"
to = "here"
filter = "{stream}/+/level"
topic_prefix = "gone/"
trigger_s = 0.2
"""


def write(tmp_path: Path, streaming: Streaming, stream: str, more: str = "", before: str = "") -> Path:
    text = FILE.format(url=streaming.url, tables=tmp_path / "lake", port=streaming.broker.port, stream=stream)
    file = tmp_path / "pipeline.toml"
    file.write_text(before + text + more)
    return file


def mirrored(receiver: Receiver, stream: str, number: int) -> list[bytes]:
    """The payloads of so many messages that the sink has published, in their order; and one alert comes."""
    alerts, payloads = 0, list[bytes]()
    while len(payloads) < number or not alerts:
        topic, _ = receiver.next()
        if topic == f"gone/{stream}/a/level":
            payloads.append(bytes(receiver.messages[-1].payload))
        else:
            assert topic == f"alerts/high/{stream}/a/level"
            alerts += 1
    return payloads


def numbered(stream: str, start: int, end: int) -> list[tuple[str, bytes]]:
    """And one that no rule wants."""
    return [*((f"{stream}/a/level", b"%d" % number) for number in range(start, end)), (f"{stream}/a", b"x")]


def broken(_: SparkSession) -> None:
    """A job that cannot go on."""
    raise JobError("the disk is full")


def odd(_: SparkSession) -> None:
    """A job with a mistake."""
    raise ZeroDivisionError("division by zero")


@contextmanager
def going_on(spark: SparkSession, plan: Plan) -> Iterator[Board]:
    """The jobs of a plan and one that is broken, until the end of the block."""
    stop, board = threading.Event(), Board([each.ingest.stream for each in plan.streams])
    jobs = [*jobs_of(plan, board, stop), Job("broken", broken), Job("odd", odd)]
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(run_jobs, spark, jobs, board, stop)
        try:
            yield board
        finally:
            stop.set()
    ended.result()


def test_all_jobs_go_on_where_they_were_and_one_that_fails_stops_nobody(
    spark: SparkSession,
    streaming: Streaming,
    tmp_path: Path,
    receive: Callable[[], Receiver],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = streaming.declare("whole")
    plan = load_pipeline(write(tmp_path, streaming, stream))
    receiver = receive()
    monkeypatch.setattr(supervising, "RETRY_S", 0.1)
    streaming.publish(numbered(stream, 0, 10))
    with going_on(spark, plan) as board:
        assert mirrored(receiver, stream, 10) == [b"%d" % number for number in range(10)]
        wait_until(lambda: board.measures[stream].counts().rows["silver/level"] == 10)
        wait_until(lambda: board.failures()["broken"] > 1)  # again and again
        why = {"broken": "the disk is full", "odd": "division by zero"}
        wait_until(lambda: board.failing() == why)
        wait_until(lambda: board.listener.figures()[f"{stream}-mirror"].messages == 11)
    streaming.publish(numbered(stream, 10, 20))
    with going_on(spark, plan) as board:
        found = [receiver.next() for _ in range(10)]
        assert {topic for topic, _ in found} == {f"gone/{stream}/a/level"}  # and no other alert
        assert [each.payload for each in receiver.messages[-10:]] == [b"%d" % n for n in range(10, 20)]
        wait_until(lambda: board.measures[stream].counts().rows["silver/level"] == 10)
        assert {job for job, number in board.failures().items() if number} == {"broken", "odd"}
    silver = plan.streams[0].ingest.silver(plan.streams[0].ingest.rules[0])
    assert rows(silver, "value") == [(float(number),) for number in range(20)]


def test_the_command(streaming: Streaming, tmp_path: Path, receive: Callable[[], Receiver]) -> None:
    """And it ends by SIGTERM, with all that it has done."""
    stream, port = streaming.declare("commanded"), free_port()
    file = write(tmp_path, streaming, stream, before=f"metrics_port = {port}\n")
    streaming.publish(numbered(stream, 0, 10))
    receiver = receive()
    with (tmp_path / "log").open("wb") as log:
        command = subprocess.Popen([*TIDEMQ, "pipeline", "run", str(file)], stderr=log)
    try:
        assert len(mirrored(receiver, stream, 10)) == 10
        wait_until(lambda: f'query_messages_total{{job="{stream}-alerts"}} 11.0' in metrics(port))
        said = metrics(port)
        for job in ("maintenance", stream, f"{stream}-alerts", f"{stream}-mirror"):
            assert f'tidemq_pipeline_job_running{{job="{job}"}} 1.0' in said
        worked = f'behind_messages{{stream="{stream}",table="silver/level"}} 0.0'
        wait_until(lambda: worked in metrics(port), wait_s=200)  # three queries begin in one Java
    finally:
        command.send_signal(signal.SIGTERM)
        code = command.wait()
    assert code == 0, (tmp_path / "log").read_text()
    ingest = load_pipeline(file).streams[0].ingest
    assert rows(ingest.silver(ingest.rules[0]), "value") == [(float(number),) for number in range(10)]
    assert f"{stream}: 1 batches: rows" in (tmp_path / "log").read_text()


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def test_it_is_drawn(streaming: Streaming, tmp_path: Path) -> None:
    file = write(tmp_path, streaming, "drawn")
    command = [*TIDEMQ, "pipeline", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "500"})
    assert done.returncode == 0, done.stderr
    lines = [line.strip("│├└─ ") for line in done.stdout.splitlines()]
    assert lines[1:] == [
        "stream drawn",
        "bronze, every 0.2 s",
        "silver/level: drawn/+/level as number: value double",
        "dead_letters: what no rule could read that wanted it",
        f"alerts -> mqtt://127.0.0.1:{streaming.broker.port}",
        "high: drawn/+/level payload threshold above 5 -> alerts/{name}/{topic}",
        f"sink mirror: drawn/+/level -> mqtt://127.0.0.1:{streaming.broker.port} gone/",
        "maintenance every 1 s, old versions stay 168 hours",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[[streams]]\nname = "late"\nbatch = 1', "streams.1.batch is unknown; "),
        ('[[streams]]\nname = "wrong"', "two streams have the name wrong; "),
        ('[[streams]]\nname = "a/b"', "streams.1.name is 'a/b'; accepted: "),
        ('[[streams]]\nname = "b"\nstart = "soon"', "streams.b: the option start is 'soon'; accepted: "),
        ('[[streams]]\nname = "b"\ntrigger_s = "1"', "streams.1.trigger_s is '1'; accepted: a valid number"),
        ('[[streams.sinks]]\nname = "mirror"\nto = "here"', "two sinks have the name mirror; "),
        (
            '[[streams.sinks]]\nname = "b"\nto = "there"',
            "sinks.b.to is 'there', which is no broker; accepted: here",
        ),
        ('[[streams.sinks]]\nname = "b"\nto = "here"\nfilter = "a#"', "sinks.b.filter is 'a#': "),
        (
            '[[streams.rules]]\nname = "level"\nfilter = "#"\nformat = "number"',
            "two rules have the name level",
        ),
        ('[[streams.rules]]\nname = "b"\nfilter = "#"\nformat = "xml"', "rules.format is 'xml'; accepted: "),
        (
            '[[streams.rules]]\nname = "b"\nfilter = "#"\nformat = "json"\ncolumns = "a what"',
            "the columns of the rule b",
        ),
        ('[brokers.there]\nurl = "http://x"', "brokers.there: "),
        ("[brokers.there]", "brokers.there.url is missing"),
    ],
)
def test_a_file_that_is_wrong(streaming: Streaming, tmp_path: Path, wrong: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_pipeline(write(tmp_path, streaming, "wrong", wrong))
    assert str(raised.value).startswith(str(tmp_path / "pipeline.toml"))
    assert said in str(raised.value)


def test_where_java_ends_all_ends(spark: SparkSession) -> None:
    def gone(_: SparkSession) -> None:
        raise JavaGoneError("Spark's Java process does not answer any more")

    stop, board = threading.Event(), Board([])
    with pytest.raises(JavaGoneError):
        run_jobs(spark, [Job("broken", broken), Job("gone", gone)], board, stop)
    assert stop.is_set()


def test_what_is_missing_or_no_toml(tmp_path: Path) -> None:
    for text, said in (("url =", "it is no TOML"), ('url = "http://a"', "tables is missing")):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_pipeline(tmp_path / "file")


def test_tables_in_an_object_store(tmp_path: Path) -> None:
    text = FILE.format(url="http://a", tables="s3://lake", port=1, stream="plant")
    options = "[storage_options]\naws_region = 'eu-central-1'\naws_secret_access_key = 'hidden'\n"
    file = tmp_path / "pipeline.toml"
    file.write_text(f"checkpoints = '/srv/state'\n{text}\n{options}")
    plan = load_pipeline(file)
    (stream,) = plan.streams
    assert stream.alerts is not None
    assert stream.ingest.checkpoint_uri == "file:///srv/state/plant/ingest"
    assert stream.alerts.checkpoint == "file:///srv/state/plant/alerts"
    assert stream.ingest.storage.options["aws_region"] == "eu-central-1"
    assert stream.alerts.storage == stream.ingest.storage
    assert "hidden" not in repr(plan)
    file.write_text(f"{text}\n{options}aws_regoin = 'x'")
    with pytest.raises(ConfigError, match=r"pipeline\.toml: storage_options has aws_regoin; accepted"):
        load_pipeline(file)
