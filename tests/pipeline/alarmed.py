"""A job that watches for alerts, and who receives them."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession
from waiting import WAIT_S

from tidemq.pipeline.alerts.watching import Alerts, run_alerts

PATIENCE_S = 4 * WAIT_S  # Spark starts, fails, and starts again, beside three others


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
            of, alert = self.next()
            if of == topic and alert["state"] == state:
                return alert

    def next(self) -> tuple[str, dict[str, Any]]:
        """Waits for an alert; gives its topic, and it."""
        message = self._queue.get(timeout=PATIENCE_S)
        self.messages.append(message)
        self.came.append((message.topic, json.loads(message.payload)))
        return self.came[-1]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


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
