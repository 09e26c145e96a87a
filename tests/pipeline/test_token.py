"""A stream behind a token: executors bring it, and nothing that Spark shows or writes has it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import StartBroker
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tidemq.cli.pipeline import app
from tidemq.client.sync import Client
from tidemq.errors import UsageError
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.testing.ports import free_port

TOKEN = "b7c1-token-of-the-admin-listener"

pytestmark = pytest.mark.timeout(300)


def test_the_token_is_in_no_plan_and_no_event_log(
    spark: SparkSession,
    start_broker: StartBroker,
    tmp_path: Path,
    event_log: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    port = free_port()
    broker = start_broker(
        f'store = "sqlite"\ndata = "{tmp_path / "data"}"\nadmin_port = {port}\n'
        f'admin_token_file = "{token_file}"\n[[streams]]\nname = "guarded"\nfilters = ["#"]\n'
    )
    with Client(f"mqtt://127.0.0.1:{broker.port}") as client:
        client.publish_many([("a", b"%d" % number) for number in range(100)], qos=1)
    url = f"http://127.0.0.1:{port}"
    register(spark)
    given = {"url": url, "stream": "guarded", "tokenFile": str(token_file)}
    frame = spark.read.format("tidemq").options(**given).load()
    assert frame.count() == 100
    frame.explain(extended=True)
    job = Ingest(url=url, stream="guarded", tables=str(tmp_path / "tables"), token_file=str(token_file))
    run_ingest(spark, job, once=True)
    assert job.bronze.read(spark, ["offset"]).count() == 100
    done = CliRunner().invoke(app, ["doctor", "guarded", "--url", url, "--token-file", str(token_file)])
    assert f"ok  broker: {url} has the stream guarded: 100 messages" in done.stdout
    assert TOKEN not in repr(job) + repr(SourceOptions.parse(given))
    out, err = capfd.readouterr()
    assert "tidemq" in out.lower()  # the plan was shown
    assert TOKEN not in out + err
    deadline = time.monotonic() + 20
    while "guarded" not in (events := "".join(each.read_text() for each in event_log.rglob("events_*"))):
        assert time.monotonic() < deadline, "Spark wrote nothing of the query"
        time.sleep(0.1)
    assert TOKEN not in events


def test_there_is_no_option_that_takes_the_token_itself() -> None:
    with pytest.raises(UsageError, match=r"the option 'token' is unknown; accepted: .*tokenFile"):
        SourceOptions.parse({"url": "http://a", "stream": "s", "token": TOKEN})
