"""Alerts reach another client, raised once and cleared once; what a crash repeats is the same again."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from waiting import WAIT_S

from tidemq.client import ConnectError, sync
from tidemq.pipeline.alerts.alert_rules import AlertRule, load_alert_rules
from tidemq.pipeline.alerts.watching import Alerts, run_alerts
from tidemq.pipeline.sources.mqtt_target import Target

pytestmark = pytest.mark.timeout(300)

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


class Receiver:
    """Another client, as whoever is to be alarmed."""

    def __init__(self, port: int) -> None:
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.messages: list[paho.MQTTMessage] = []
        self._queue: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, data, message: self._queue.put(message)
        subscribed: queue.Queue[object] = queue.Queue()
        self._client.on_subscribe = lambda *answer: subscribed.put(answer)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([("alerts/#", 1), ("gone/#", 1)])
        self._client.loop_start()
        subscribed.get(timeout=WAIT_S)

    def until(self, topic: str, state: str) -> dict[str, Any]:
        """Waits for such an alert; it and those before it are in `came`."""
        while True:
            message = self._queue.get(timeout=150)
            self.messages.append(message)
            self.came.append((message.topic, json.loads(message.payload)))
            if message.topic == topic and self.came[-1][1]["state"] == state:
                return self.came[-1][1]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def receive(streaming: Streaming) -> Iterator[Callable[[], Receiver]]:
    receivers = []

    def receive() -> Receiver:
        receivers.append(Receiver(streaming.broker.port))
        return receivers[-1]

    yield receive
    for receiver in receivers:
        receiver.close()


@contextmanager
def running(spark: SparkSession, job: Alerts) -> Iterator[None]:
    """The job, until it is told to end. What it raises is raised here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_alerts(spark, job)
        except BaseException as error:  # noqa: BLE001 (raised by who joins the thread)
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():  # it may be between two queries
            for query in spark.streams.active:
                query.stop()
            thread.join(0.2)
    assert not failed, failed


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
