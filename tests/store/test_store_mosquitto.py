"""What a real Mosquitto kept is taken over: sessions, subscriptions, queues in order, retained messages."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from conftest import StartBroker
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from waiting import WAIT_S, wait_until

from tidemq.errors import StoreError
from tidemq.store.engines import open_existing
from tidemq.store.inspection import check_store
from tidemq.store.mosquitto import parse_mosquitto, plan_rows
from tidemq.store.rows import IDLE, IN_FLIGHT, PARSERS, RELEASED, RETAIN, SENT, QueueEntry
from tidemq.testing.ports import free_port

COMMAND = [sys.executable, "-c", "from tidemq.cli import main; main()", "store", "import-mosquitto"]


class Mosquitto:
    """A broker that keeps its state in `folder`; `stop` makes it write the file."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.file = folder / "mosquitto.db"
        config = folder / "mosquitto.conf"
        user = "user root\n" if os.geteuid() == 0 else ""
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n{user}"
            f"persistence true\npersistence_location {folder}/\n"
        )
        with (folder / "mosquitto.log").open("wb") as log:
            self.process = subprocess.Popen(["mosquitto", "-c", str(config)], stdout=log, stderr=log)
        wait_until(self._listens, "Mosquitto listens")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> bytes:
        self.process.terminate()
        self.process.wait(WAIT_S)
        return self.file.read_bytes()

    def subscribe(self, client_id: str, *arguments: str) -> None:
        self._run("mosquitto_sub", "-i", client_id, "-c", "-E", *arguments)

    def publish(self, topic: str, payload: str, *arguments: str) -> None:
        self._run("mosquitto_pub", "-q", "1", "-t", topic, "-m", payload, *arguments)

    def _run(self, *command: str) -> None:
        subprocess.run([*command, "-p", str(self.port)], check=True, timeout=WAIT_S)

    def receive_without_acknowledging(self, client_id: str, count: int, topic_filter: str = "") -> None:
        """Connects, gets messages, leaves: QoS 1 stays unacknowledged, of QoS 2 only PUBCOMP is missing."""
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False, manual_ack=True)
        got: list[bytes] = []
        client.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
        client.connect("127.0.0.1", self.port)
        if topic_filter:
            client.subscribe(topic_filter, 1)
        client.loop_start()
        wait_until(lambda: len(got) == count, f"{count} messages")
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def mosquitto(install: Callable[[str, str], None], tmp_path: Path) -> Iterator[Mosquitto]:
    install("mosquitto", "mosquitto")
    install("mosquitto_sub", "mosquitto-clients")
    broker = Mosquitto(tmp_path)
    yield broker
    broker.process.kill()
    broker.process.wait()


def import_file(file: Path, data: Path, *arguments: str) -> dict[str, list[Any]]:
    """Runs the command; the rows of the store, parsed, by family."""
    done = subprocess.run([*COMMAND, str(file), "--data", str(data), *arguments], timeout=WAIT_S)
    assert done.returncode == 0
    store = open_existing(data)
    findings = check_store(store)
    assert (findings.corrupt, findings.leftovers) == ([], {})
    rows: dict[str, list[Any]] = {
        family: [parse(*row) for row in store.scan(family)] for family, parse in PARSERS.items()
    }
    store.close()
    return rows


def queues(rows: dict[str, list[Any]]) -> dict[str, list[tuple[str, bytes, QueueEntry]]]:
    """What waits for whom: topic, payload and entry, in order."""
    clients = {each.queue: each.client_id for each in rows["session"]}
    found: dict[str, list[tuple[str, bytes, QueueEntry]]] = {name: [] for name in clients.values()}
    ids = sorted({entry.id for entry in rows["queue"]})
    messages = dict(zip(ids, rows["payload"], strict=True))  # payloads are in the order of ids
    for entry in rows["queue"]:
        message = messages[entry.id]
        found[clients[entry.queue]].append((message.topic, message.payload, entry))
    return found


@pytest.mark.parametrize("engine", ["rocksdb", "sqlite"])
def test_sessions_subscriptions_queues_and_retained_messages(
    mosquitto: Mosquitto, tmp_path: Path, engine: str
) -> None:
    mosquitto.publish("house/old", "kept", "-r")
    five = ("-V", "mqttv5", "-x", "1000")
    mosquitto.subscribe(
        "five", "-q", "2", "-t", "a/#", *five, "-D", "subscribe", "subscription-identifier", "300"
    )
    mosquitto.subscribe("three", "-q", "1", "-t", "a/#", "-t", "b/+")
    text_type = ("-V", "mqttv5", "-D", "publish", "content-type", "text/plain")
    before_ms = time.time() * 1000
    mosquitto.publish("a/1", "one", *text_type, "-D", "publish", "message-expiry-interval", "5000")
    mosquitto.publish("a/2", "two", "-q", "2")
    for number in range(20):
        mosquitto.publish("b/x", str(number), "-r")
    mosquitto.stop()
    rows = import_file(mosquitto.file, tmp_path / "data", "--store", engine)

    sessions = {each.client_id: each for each in rows["session"]}
    assert sessions.keys() == {"five", "three"}
    assert (sessions["five"].expiry_s, sessions["three"].expiry_s) == (1000, 0xFFFFFFFF)
    assert before_ms < sessions["five"].ends_at_ms <= (time.time() + 1001) * 1000
    assert sessions["three"].ends_at_ms == 0
    subscribed = {(each.client_id, each.topic_filter, each.options & 3) for each in rows["subscription"]}
    assert subscribed == {("five", "a/#", 2), ("three", "a/#", 1), ("three", "b/+", 1)}
    assert {each.subscription_id for each in rows["subscription"]} == {0, 300}
    assert {(each.message.topic, each.message.payload) for each in rows["retained"]} == {
        ("house/old", b"kept"), ("b/x", b"19")
    }  # fmt: skip

    found = queues(rows)
    assert [(topic, payload, entry.qos) for topic, payload, entry in found["five"]] == [
        ("a/1", b"one", 1), ("a/2", b"two", 2)
    ]  # fmt: skip
    assert [entry.subscription_ids for *_, entry in found["five"]] == [(300,), (300,)]
    assert [payload for _, payload, _ in found["three"]] == [b"one", b"two", *(b"%d" % n for n in range(20))]
    assert {entry.status for *_, entry in [*found["five"], *found["three"]]} == {IDLE}
    one = rows["payload"][0]
    assert one.properties == b"\x03\x00\x0atext/plain"
    # Mosquitto counts whole seconds, of a clock that it reads once in its loop
    assert before_ms // 1000 * 1000 + 4_999_000 <= one.expires_at_ms < (time.time() + 5001) * 1000
    assert [each.count for each in rows["reference"]] == [2, 2]
    assert len(rows["expiry"]) == 2


def test_what_is_in_flight_keeps_its_packet_identifier_and_state(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    mosquitto.subscribe("client", "-q", "2", "-t", "a")
    for number in range(3):
        mosquitto.publish("a", str(number), "-q", str(1 + number % 2))
    mosquitto.receive_without_acknowledging("client", 3)
    mosquitto.publish("a", "later")
    mosquitto.stop()
    idle, *inflight = sorted(
        queues(import_file(mosquitto.file, tmp_path / "data"))["client"], key=lambda each: each[2].status
    )
    assert (idle[1], idle[2].status, idle[2].flags) == (b"later", IDLE, 0)
    assert [payload for _, payload, _ in inflight] == [b"0", b"1", b"2"]
    assert [entry.status for *_, entry in inflight] == [IN_FLIGHT] * 3
    assert [entry.flags for *_, entry in inflight] == [SENT, SENT | RELEASED, SENT]
    assert [entry.sequence % 65535 + 1 for *_, entry in inflight] == [1, 2, 3]


def test_a_retained_message_that_is_older_than_the_queue_keeps_its_place(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """Mosquitto queues it behind newer ones, where its own id would put it before them."""
    mosquitto.publish("a/old", "old", "-r")
    mosquitto.subscribe("client", "-q", "1", "-t", "b/#")
    mosquitto.publish("b/1", "first")
    mosquitto.receive_without_acknowledging("client", 2, "a/old")
    mosquitto.publish("b/2", "last")
    mosquitto.stop()
    found = queues(import_file(mosquitto.file, tmp_path / "data"))["client"]
    assert [(payload, entry.status) for _, payload, entry in found] == [
        (b"last", IDLE), (b"first", IN_FLIGHT), (b"old", IN_FLIGHT)
    ]  # fmt: skip
    assert [entry.flags & RETAIN for *_, entry in found] == [0, 0, RETAIN]
    assert max(found, key=lambda each: each[2].id)[1] == b"last"


def test_what_is_left_out_is_said(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", mosquitto.port), WAIT_S) as connection:
        connection.sendall(bytes.fromhex("100d 00044d515454 04 00 003c 0001 78"))  # keeps its session
        assert connection.recv(4) == bytes.fromhex("20020000")
        connection.sendall(bytes.fromhex("3406 0001 61 0007 70"))
        assert connection.recv(4) == bytes.fromhex("50020007")
    mosquitto.stop()
    command = [*COMMAND, str(mosquitto.file), "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stderr.splitlines() == [
        "left out: 1 QoS 2 messages that their publisher had not released",
        "1 sessions, 0 subscriptions, 0 queued messages, 0 retained messages",
    ]


def test_packet_identifiers_that_began_anew_stay_in_order(mosquitto: Mosquitto) -> None:
    mosquitto.subscribe("client", "-q", "1", "-t", "a")
    for number in range(4):
        mosquitto.publish("a", str(number))
    mosquitto.receive_without_acknowledging("client", 4)
    state = parse_mosquitto(mosquitto.stop())
    given = iter((65534, 65535, 1, 2))
    state.deliveries = [replace(each, packet_id=next(given)) for each in state.deliveries]
    rows = [(key, value) for family, key, value in plan_rows(state) if family == "queue"]
    sequences = [PARSERS["queue"](*row).sequence for row in rows]  # type: ignore[attr-defined]
    assert sequences == [65533, 65534, 65535, 65536]


def test_properties_of_mqtt_5_reach_the_client_through_the_broker(
    mosquitto: Mosquitto, tmp_path: Path, start_broker: StartBroker
) -> None:
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 1000
    mosquitto.subscribe("client", "-q", "1", "-t", "a", "-V", "mqttv5", "-x", "1000")
    mosquitto.publish("a", "text", "-V", "mqttv5", "-D", "publish", "user-property", "name", "value")
    mosquitto.publish("b", "kept", "-r")
    mosquitto.stop()
    import_file(mosquitto.file, tmp_path / "data")
    broker = start_broker(settings=f'store = "rocksdb"\ndata = "{tmp_path}/data"\n')
    got: list[paho.MQTTMessage] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "client", protocol=paho.MQTTv5)
    client.on_message = lambda _client, _data, message: got.append(message)
    client.connect("127.0.0.1", broker.port, clean_start=False, properties=properties)
    client.subscribe("b")
    client.loop_start()
    wait_until(lambda: len(got) == 2, "both messages")
    client.disconnect()
    client.loop_stop()
    queued, kept = sorted(got, key=lambda message: message.topic)
    assert (queued.topic, queued.payload, queued.qos) == ("a", b"text", 1)
    assert queued.properties is not None
    assert queued.properties.UserProperty == [("name", "value")]  # type: ignore[attr-defined]
    assert (kept.topic, kept.payload, kept.retain) == ("b", b"kept", True)


def test_every_cut_and_what_is_no_file_of_mosquitto_s_is_refused(mosquitto: Mosquitto) -> None:
    mosquitto.subscribe("client", "-q", "1", "-t", "a")
    mosquitto.publish("a", "x")
    text = mosquitto.stop()
    whole = parse_mosquitto(text)
    assert len(whole.deliveries) == 1
    for end in range(len(text)):
        try:
            parse_mosquitto(text[:end])  # a cut between two chunks cannot be told
        except StoreError:
            continue
        assert parse_mosquitto(text[:end]) != whole
    chance = random.Random(1)
    for _ in range(500):
        damaged = bytearray(text)
        damaged[chance.randrange(23, len(text))] = chance.choice([0, 1, 0x7F, 0xFF])
        with contextlib.suppress(StoreError):  # other bytes of a name or a payload cannot be told
            assert list(plan_rows(parse_mosquitto(bytes(damaged))))
    with pytest.raises(StoreError, match="no file of Mosquitto's"):
        parse_mosquitto(b"SQLite format 3")
    with pytest.raises(StoreError, match="version 5"):
        parse_mosquitto(text[:22] + b"\5" + text[23:])


def test_subscriptions_that_the_rules_will_end_are_named(mosquitto: Mosquitto, tmp_path: Path) -> None:
    mosquitto.subscribe("c1", "-u", "ann", "-t", "plant/#", "-t", "free/#")
    mosquitto.subscribe("c2", "-u", "bob", "-t", "plant/#")
    mosquitto.subscribe("c3", "-t", "plant/#")
    mosquitto.stop()
    rules = tmp_path / "acl"
    rules.write_text(
        "user ann\ntopic read plant/#\ntopic deny plant/secret/#\ntopic read free/#\n"
        "user bob\ntopic read plant/#\n"
    )
    command = [*COMMAND, str(mosquitto.file), "--data", str(tmp_path / "data"), "--acl", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stderr.splitlines()) == [
        f"2 of 4 subscriptions will end with {rules}",
        "3 sessions, 4 subscriptions, 0 queued messages, 0 retained messages",
        "will end: 'plant/#' of client 'c1', user 'ann': line 3 refuses a part of it",
        "will end: 'plant/#' of client 'c3', user None: no line allows it",
    ]
