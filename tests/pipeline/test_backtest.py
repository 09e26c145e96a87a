"""A backtest says what was raised live, and a live job goes on where it ended."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pipeline.alarmed import Receiver, running
from pipeline.lake import ingest
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.alerts.alert_rules import AlertRule, load_alert_rules
from tidemq.pipeline.alerts.watching import Alerts, content_of
from tidemq.pipeline.backtest import Backtest, run_backtest
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.stream_options import Position

pytestmark = pytest.mark.timeout(400)

RULES = """
[[alerts]]
name = "hot"
filter = "{stream}/#"
kind = "threshold"
above = 30
hysteresis = 2
count = 2
of = 3

[[alerts]]
name = "jump"
filter = "{stream}/+/a"
kind = "zscore"
window = 5
above = 2
by = "client"

[[alerts]]
name = "silent"
filter = "{stream}/#"
kind = "absence"
after_s = 1
"""


def rules_of(tmp_path: Path, stream: str) -> tuple[AlertRule, ...]:
    file = tmp_path / "alerts.toml"
    file.write_text(RULES.replace("{stream}", stream))
    return load_alert_rules(file)


def publish(streaming: Streaming, stream: str, chance: random.Random, number: int) -> None:
    """Readings of two clients on six topics; some cannot be read."""
    topics = [f"{stream}/{room}/{kind}" for room in range(3) for kind in "ab"]
    for name in ("one", "two"):
        with streaming.client(client_id=name) as client:
            for _ in range(number):
                payload = "?" if chance.random() < 0.05 else f"{chance.gauss(25, 6):.3f}"
                client.publish(chance.choice(topics), payload, qos=1)


def found(spark: SparkSession, job: Backtest) -> list[dict[str, Any]]:
    alerts: list[dict[str, Any]] = []
    outcome = run_backtest(spark, job, lambda rule, row: alerts.append(content_of(rule, row)))
    assert outcome.alerts == len(alerts)
    return alerts


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_live_job_goes_on_and_finds_the_same(
    spark: SparkSession, streaming: Streaming, receive: Callable[[], Receiver], tmp_path: Path, seed: int
) -> None:
    stream = streaming.declare(f"past{seed}")
    chance = random.Random(seed)
    for _ in range(3):
        publish(streaming, stream, chance, 40)
        time.sleep(1.2)  # an absence
    ingest(spark, streaming, tmp_path, stream, "rules = []")
    lake = Lake(stream=stream, tables=str(tmp_path / "lake"))
    whole = Backtest(lake=lake, rules=rules_of(tmp_path, stream))
    alerts = found(spark, whole)
    assert {alert["rule"] for alert in alerts} == {"hot", "jump", "silent"}
    assert [alert["time"] for alert in alerts] == sorted(alert["time"] for alert in alerts)
    handover = str(tmp_path / "handover")
    middle = Position(offset=chance.randrange(90, 150))
    first = found(spark, replace(whole, end=middle, handover=handover))
    assert first
    assert [alert for alert in alerts if alert in first] == first
    rest = [alert for alert in alerts if alert not in first]
    with pytest.raises(UsageError, match="is not empty"):
        run_backtest(spark, replace(whole, handover=handover), lambda rule, row: None)
    live = Alerts(
        url=streaming.url,
        stream=stream,
        mqtt=Target(f"mqtt://127.0.0.1:{streaming.broker.port}"),
        rules=whole.rules,
        checkpoint=str(tmp_path / "checkpoint"),
        handover=handover,
    )
    receiver = receive()
    wanted = {alert["id"]: alert for alert in rest}
    came: dict[str, dict[str, Any]] = {}
    with running(spark, live):
        while wanted.keys() - came.keys():
            _, alert = receiver.next()
            if alert["topic"].startswith(f"{stream}/"):  # those of other tests may be retained
                assert alert["id"] not in came
                came[alert["id"]] = alert
    last = max(alert["time"] for alert in alerts)
    assert {name: alert for name, alert in came.items() if alert["time"] <= last} == wanted


def test_the_command(spark: SparkSession, streaming: Streaming, tmp_path: Path) -> None:
    stream = streaming.declare("backtested")
    streaming.publish([(f"{stream}/1/a", b"%d" % value) for value in (20, 35, 36, 20, 20)])
    ingest(spark, streaming, tmp_path, stream, "rules = []")
    rules_of(tmp_path, stream)
    command = [*TIDEMQ, "pipeline", "backtest", stream, str(tmp_path / "lake")]
    command += ["--rules", str(tmp_path / "alerts.toml")]
    done = subprocess.run([*command, "--to", "4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["rule"], each["state"], each["offset"], each["value"]) for each in lines] == [
        ("hot", "raised", 2, 36.0)
    ]
    said = "1 alerts in 4 messages, of which 0 cannot be read; the next offset is 4"
    assert said in done.stderr.splitlines()
    done = subprocess.run([*command, "--from", "latest"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tidemq: there is no message between these places")


def test_without_a_table_there_is_nothing_to_look_at(spark: SparkSession, tmp_path: Path) -> None:
    job = Backtest(lake=Lake(stream="none", tables=str(tmp_path)), rules=rules_of(tmp_path, "none"))
    with pytest.raises(TableError, match=r"there is no table .*none/bronze with messages"):
        run_backtest(spark, job, lambda rule, row: None)
