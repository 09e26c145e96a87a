"""Three faults, each found by what an operator would look at: the alarms, the API's lists, the log."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import PUBACK, publish
from small_disk import small_disk
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config, Limits
from tidemq.broker.monitoring import alarms

DISK_MIB = 64
ACL = "deny publish plant/secret\nallow all #\n"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with small_disk(tmp_path / "disk", DISK_MIB) as path:
        yield path


def looked_at(broker: Broker, path: str) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def active(broker: Broker) -> dict[str, str]:
    return {each["name"]: each["text"] for each in looked_at(broker, "/alarms")[1]["active"]}


def dropped(broker: Broker, client_id: str) -> dict[str, int]:
    """Messages of a client, by cause."""
    rows = looked_at(broker, "/api/v1/drops")[1]["drops"]
    return {each["cause"]: each["messages"] for each in rows if each["client_id"] == client_id}


def fill(disk: Path, broker: Broker) -> Path:
    """Messages are stored until there is no room; the file that takes it."""
    keeper = connected(broker, **kept(5))
    keeper.subscribe("plant/#", qos=1)
    keeper.drop()
    publisher = connected(broker)
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        free = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    refused = 0
    for _ in range(200):
        publisher.send(publish("plant/1", bytes(50_000), 1, publisher.next_id()))
        refused += publisher.expect(PUBACK).reason >= 0x80
    assert refused
    return ballast


def be_slow(broker: Broker, slow_id: str, quick_id: str) -> list[Client]:
    """One client reads nothing of what another reads; both."""
    slow, quick, publisher = (
        connected(broker, client_id=slow_id),
        connected(broker, client_id=quick_id),
        connected(broker),
    )
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.subscribe("plant/#")
    quick.subscribe("plant/#")
    for _ in range(2000):
        publisher.publish("plant/1", bytes(10_000))
        quick.receive()
    return [slow, quick]


def be_refused(broker: Broker, refused_id: str, allowed_id: str) -> None:
    """Of one client the rules refuse all messages, of another none."""
    for client_id, topic in ((refused_id, "plant/secret"), (allowed_id, "plant/open")):
        client = connected(broker, client_id=client_id)
        for _ in range(5):
            client.publish(topic, b"x")
        client.ping()


async def test_a_full_disk_is_an_alarm_and_ends(
    disk: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "HOLD_S", 1.0)
    config = Config(host="127.0.0.1", port=0, data=disk / "data", admin_port=unused_tcp_port)

    def act() -> None:
        assert looked_at(broker, "/ready") == (200, {"status": "ok"})
        ballast = fill(disk, broker)
        wait_until(lambda: "store" in active(broker), "the alarm")
        wait_until(lambda: "disk" in active(broker), "the disk's alarm")
        status, body = looked_at(broker, "/ready")
        assert status == 503
        assert "store" in body["alarms"]
        assert "are free" in active(broker)["disk"]
        ballast.unlink()
        wait_until(lambda: not active(broker), "the alarm's end")
        ended = looked_at(broker, "/alarms")[1]["ended"]
        assert {"store", "disk"} <= {each["name"] for each in ended}

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    assert any("No space left" in line or "disk is full" in line for line in caplog.messages)


async def test_a_slow_subscriber_is_told_apart(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(backpressure_s=0, output_high_bytes=100_000, output_bytes_max=1_000_000)
    config = Config(
        host="127.0.0.1", port=0, data=tmp_path, admin_port=unused_tcp_port, limits=limits, sys_interval_s=0
    )
    slow_id, quick_id = unique("slow"), unique("quick")

    def act() -> None:
        clients = be_slow(broker, slow_id, quick_id)
        wait_until(lambda: dropped(broker, slow_id), "a row of what was dropped")
        assert set(dropped(broker, slow_id)) == {"dropped_slow_consumer"}
        assert not dropped(broker, quick_id)
        shown = looked_at(broker, f"/api/v1/clients/{slow_id}")[1]
        assert shown["slow"]
        assert shown["output_bytes"] > 100_000
        assert not looked_at(broker, f"/api/v1/clients/{quick_id}")[1]["slow"]
        for client in clients:
            client.drop()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    assert any(slow_id in line and "reads more slowly" in line for line in caplog.messages)


async def test_a_client_whose_messages_a_rule_refuses_is_named(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tidemq")
    rules = tmp_path / "rules.acl"
    rules.write_text(ACL)
    config = Config(host="127.0.0.1", port=0, data=tmp_path, admin_port=unused_tcp_port, acl_file=rules)
    refused_id, allowed_id = unique("refused"), unique("allowed")

    def act() -> None:
        be_refused(broker, refused_id, allowed_id)
        wait_until(lambda: dropped(broker, refused_id) == {"refused_not_authorised": 5}, "the row")
        assert not dropped(broker, allowed_id)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    assert any(refused_id in line and "the rules" in line for line in caplog.messages)
