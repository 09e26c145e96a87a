"""Alerts reach another client, raised once and cleared once; what a crash repeats is the same again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pipeline.alarmed import Receiver, running
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import Row, SparkSession

from tidemq.client import ConnectError, sync
from tidemq.pipeline.alerts.alert_rules import AlertRule, load_alert_rules
from tidemq.pipeline.alerts.states import Condition
from tidemq.pipeline.alerts.watching import READ_MS, Alerts, Watcher, run_alerts
from tidemq.pipeline.sources.mqtt_target import Target

pytestmark = pytest.mark.timeout(900)

RULES = """
[[alerts]]
name = "hot"
filter = "watched/+/climate"
value = "room.celsius"
kind = "threshold"
above = 30
hysteresis = 2
retain = true

[[alerts]]
name = "leak"
filter = "watched/+/level"
kind = "rate"
below = -0.001

[[alerts]]
name = "silent"
filter = "watched/#"
kind = "absence"
by = "client"
after_s = 3
topic = "gone/{client}"
"""


def rules_of(tmp_path: Path) -> tuple[AlertRule, ...]:
    file = tmp_path / "alerts.toml"
    file.write_text(RULES)
    return load_alert_rules(file)


@pytest.fixture
def crash_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first time that the driver has published, it fails before the batch counts as done."""
    crashed: list[Any] = []
    connected = Target.connected

    @contextmanager
    def crashing(target: Target, **options: Any) -> Iterator[sync.Client]:
        with connected(target, **options) as client:
            yield client
        if not crashed:
            crashed.append("crashed")
            raise OSError("crashed")

    monkeypatch.setattr(Target, "connected", crashing)
    return crashed


def test_alerts_are_received_once_each_but_for_a_crash(
    spark: SparkSession,
    streaming: Streaming,
    receive: Callable[[], Receiver],
    crash_once: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    streaming.declare("watched")
    receiver = receive()
    job = Alerts(
        url=streaming.url,
        stream="watched",
        mqtt=Target(f"mqtt://127.0.0.1:{streaming.broker.port}"),
        rules=rules_of(tmp_path),
        checkpoint=str(tmp_path / "checkpoint"),
        start="earliest",
    )
    climate = '{"room": {"celsius": %s}}'
    with streaming.client(client_id="thermometer") as device, streaming.client(client_id="gauge") as gauge:
        for celsius in ("29", '"x"', "NaN", "null", "31", "32"):
            device.publish("watched/1/climate", climate % celsius, qos=1)
        for level in ("7", "high", "6.5"):
            gauge.publish("watched/1/level", level, qos=1)
        with running(spark, job):
            raised = receiver.until("alerts/hot/watched/1/climate", "raised")
            receiver.until("gone/thermometer", "raised")
            receiver.until("gone/gauge", "raised")
            device.publish("watched/1/climate", climate % "29", qos=1)
            device.publish("watched/1/climate", climate % "28", qos=1)
            receiver.until("alerts/hot/watched/1/climate", "cleared")
    assert crash_once
    assert raised == {
        "id": raised["id"],
        "rule": "hot",
        "state": "raised",
        "topic": "watched/1/climate",
        "client": "thermometer",
        "value": 31.0,
        "limit": 30.0,
        "offset": 4,
        "time": raised["time"],
    }
    first = receiver.messages[0]
    assert first.qos == 1
    assert first.properties is not None
    assert first.properties.ContentType == "application/json"  # type: ignore[attr-defined]
    assert first.properties.UserProperty == [("alert-id", receiver.came[0][1]["id"])]  # type: ignore[attr-defined]
    each = {alert["id"]: (topic, alert["state"], alert["offset"]) for topic, alert in receiver.came}
    assert len(each) < len(receiver.came)  # the crash
    assert sorted(each.values()) == [
        ("alerts/hot/watched/1/climate", "cleared", 10),
        ("alerts/hot/watched/1/climate", "raised", 4),
        ("alerts/leak/watched/1/level", "raised", 8),
        ("gone/gauge", "raised", 8),
        ("gone/thermometer", "cleared", 9),
        ("gone/thermometer", "raised", 5),
    ]
    assert (
        "alert hot: 2 messages cannot be read, such as that of offset 1 on watched/1/climate" in caplog.text
    )
    assert "alert leak: 1 messages cannot be read, such as that of offset 7 on watched/1/level" in caplog.text
    late = receive()
    assert late.until("alerts/hot/watched/1/climate", "cleared")
    assert [message.retain for message in late.messages] == [True]


class Store:
    """What Spark keeps of one topic, and the timers that are set."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.timers: list[int] = []

    def getValueState(self, name: str, schema: str) -> Store:  # noqa: N802
        return self

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        self.timers.append(at_ms)

    def get(self) -> Any:
        return self.kept

    def update(self, kept: Any) -> None:
        self.kept = kept

    def clear(self) -> None:
        self.kept = None


class At:
    """A time of processing, or of a timer."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        return self.ms

    def getExpiryTimeInMs(self) -> int:  # noqa: N802
        return self.ms


def test_nobody_is_silent_whose_message_is_only_not_read_yet() -> None:
    """The broker has it in time, and the job a little later than the deadline."""
    store, key = Store(), ("silent", "a")
    watcher = Watcher({"silent": Condition(kind="absence", after_s=3.0)})
    watcher.init(store)  # type: ignore[arg-type]

    def comes(offset: int, at_ms: int) -> list[Any]:
        row = Row(epoch=7, offset=offset, time_us=at_ms * 1000, topic="a", client_id="c", value=0.0)
        return list(watcher.handleInputRows(key, iter([row]), At(at_ms)))  # type: ignore[arg-type]

    def passes(now_ms: int, timer_ms: int) -> list[tuple[str, int]]:
        found = watcher.handleExpiredTimer(key, At(now_ms), At(timer_ms))  # type: ignore[arg-type]
        return [(row.state, row.time_us) for row in found]

    assert comes(1, 10_000) == []
    assert store.timers == [13_000 + READ_MS]
    assert passes(13_500, 13_500) == []  # a timer that an earlier version has set
    assert comes(2, 12_999) == []
    assert passes(13_000 + READ_MS, 13_000 + READ_MS) == []
    assert store.timers[-1] == 15_999 + READ_MS
    assert passes(15_999 + READ_MS, 15_999 + READ_MS) == [("raised", 15_999_000)]


def test_a_broker_that_is_not_there_is_named(unused_tcp_port: int, tmp_path: Path) -> None:
    job = Alerts(
        url="http://127.0.0.1:1",
        stream="any",
        mqtt=Target(f"mqtt://127.0.0.1:{unused_tcp_port}"),
        rules=rules_of(tmp_path),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    with pytest.raises(ConnectError, match=str(unused_tcp_port)):
        run_alerts(None, job)  # type: ignore[arg-type]  # it fails before it needs Spark


def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.toml"
    rules.write_text("[[alerts]]\nname = 1\n")
    command = [
        *TIDEMQ,
        "pipeline",
        "alerts",
        "any",
        "--url",
        "http://127.0.0.1:1",
        "--mqtt",
        "mqtt://127.0.0.1",
    ]
    command += ["--rules", str(rules), "--checkpoint", str(tmp_path / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"tidemq: {rules}: alerts.filter is missing; accepted: an MQTT topic filter\n"
