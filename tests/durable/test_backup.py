"""A backup of a running broker has all that was acknowledged before it, and another broker runs on it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import Client, connected, kept
from typer.testing import CliRunner
from waiting import WAIT_S

from tidemq import Broker, Config
from tidemq.broker.durability import backup
from tidemq.cli.store import app
from tidemq.config import StreamConfig

JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=["rocksdb", "sqlite"])
def config(request: pytest.FixtureRequest, tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        store=request.param,
        data=tmp_path / "data",
        admin_port=unused_tcp_port,
        streams=(StreamConfig(name="all", filters=("plant/#",)),),
    )


def asked(broker: Broker, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request(method, path, None if body is None else json.dumps(body), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def restored(name: str, config: Config, to: Path) -> None:
    done = CliRunner().invoke(app, ["restore", str(config.data / "backups" / name), "--data", str(to)])
    assert done.exit_code == 0, done.output


def received(client: Client, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = client.receive()
        found.append(message.payload)
        client.acknowledge(message)
    return found


async def test_what_was_acknowledged_is_in_it(config: Config, tmp_path: Path) -> None:
    acknowledged: list[int] = []
    ended = threading.Event()

    def publish() -> None:
        client = connected(broker)
        number = 0
        while not ended.is_set():
            client.publish("plant/1", b"%d" % number, qos=1)
            acknowledged.append(number)
            number += 1

    def act() -> int:
        away = connected(broker, client_id="away", **kept(5))
        away.subscribe("plant/+", qos=1)
        away.drop()
        connected(broker).publish("office/1", b"kept", qos=1, retain=True)
        thread = threading.Thread(target=publish)
        thread.start()
        while len(acknowledged) < 300:
            ended.wait(0.01)
        before = len(acknowledged)
        status, answer = asked(broker, "POST", "/api/v1/backup", {"name": "first"})
        assert (status, answer["name"]) == (201, "first")
        assert answer["path"] == str(config.data.absolute() / "backups" / "first")
        while len(acknowledged) < before + 300:
            ended.wait(0.01)
        ended.set()
        thread.join()
        assert [each["name"] for each in asked(broker, "GET", "/api/v1/backups")[1]["backups"]] == ["first"]
        return before

    async with Broker(config) as broker:
        before = await asyncio.to_thread(act)
    restored("first", config, tmp_path / "again")

    def look() -> None:
        away = connected(broker, client_id="away", **kept(5))
        found = received(away, before)
        assert found == [b"%d" % number for number in range(before)]
        late = connected(broker)
        late.subscribe("office/#")
        late.expect_message("office/1", b"kept")
        stream = asked(broker, "GET", "/streams/all")[1]
        assert before <= stream["next_offset"] <= len(acknowledged)

    again = config.model_copy(update={"data": tmp_path / "again"})
    async with Broker(again) as broker:
        await asyncio.to_thread(look)
    done = CliRunner().invoke(app, ["check", "--data", str(config.data / "backups" / "first")])
    assert done.exit_code == 0, done.output
    assert "0 corrupt" in done.output


async def test_a_backup_that_cannot_be_made_leaves_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "BACKUPS_MAX", 2)

    def act() -> None:
        for name, status in (("a", 201), ("a", 409), ("../a", 400), ("b", 201), ("c", 409), (7, 400)):
            assert asked(broker, "POST", "/api/v1/backup", {"name": name})[0] == status
        assert sorted(each.name for each in (config.data / "backups").iterdir()) == ["a", "b"]
        client = connected(broker, **kept(5))
        client.publish("a", b"x", qos=1)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_store_in_memory_has_none(config: Config) -> None:
    async with Broker(config.model_copy(update={"store": "memory", "streams": ()})) as broker:
        status, answer = await asyncio.to_thread(asked, broker, "POST", "/api/v1/backup", {})
    assert status == 409
    assert "no files" in answer["detail"]


def test_only_an_empty_directory_gets_one(config: Config, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "engine").write_text(config.store)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    command = ["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "there")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "is not an empty directory" in done.output
