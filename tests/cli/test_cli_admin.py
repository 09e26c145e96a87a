"""`tidemq admin` and `tidemq top` against a running broker: each command does what its request does."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected, kept, unique
from typer.testing import CliRunner
from waiting import wait_until

from tidemq import Broker, Config
from tidemq.broker.monitoring.pulse import Pulse
from tidemq.cli import make_app


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(host="127.0.0.1", port=0, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port)


class Command:
    """Runs commands of the group, for one broker."""

    def __init__(self, broker: Broker) -> None:
        self.environment = {"TIDEMQ_ADMIN_URL": f"http://127.0.0.1:{broker.admin_port}"}

    def run(self, *words: str, sent: str = "") -> tuple[int, str]:
        """Exit code and what it wrote."""
        done = CliRunner().invoke(make_app(words[0]), words, env=self.environment, input=sent)
        return done.exit_code, done.output

    def text(self, *words: str) -> str:
        code, output = self.run("admin", *words)
        assert code == 0, output
        return output

    def json(self, *words: str) -> Any:
        return json.loads(self.text("--json", *words))


async def with_broker(config: Config, act: Callable[[Broker, Command], None]) -> None:
    async with Broker(config) as broker:
        await asyncio.to_thread(act, broker, Command(broker))


async def test_a_client_from_its_coming_to_its_end(config: Config) -> None:
    name = unique("pump")

    def act(broker: Broker, command: Command) -> None:
        client = connected(broker, client_id=name, **kept(5))
        client.subscribe("plant/+", qos=1)
        assert name in command.text("clients", "--prefix", "pump", "--connected")
        assert command.json("clients", "--away") == []
        assert command.json("client", name)["subscription_list"][0]["topic_filter"] == "plant/+"
        assert [each["client_id"] for each in command.json("subscribers", "plant/1")] == [name]
        assert command.json("disconnect", name) == {"disconnecting": name}
        wait_until(lambda: not command.json("client", name)["connected"])
        assert "last_disconnect" in command.text("client", name)
        assert command.json("publish", "plant/1", "hello", "-q", "1")["payload_bytes"] == 5
        assert [each["payload"] for each in command.json("queue", name)] == ["hello"]
        code, output = command.run("admin", "purge", name, sent="n\n")
        assert (code, "nothing was done" in output) == (1, True)
        assert command.json("purge", name, "--yes") == {"messages": 1}
        wait_until(lambda: command.json("drops"))  # reported in the next tick
        drop = command.json("drops")[0]
        assert (drop["client_id"], drop["cause"]) == (name, "dropped_purged")
        command.text("end-session", name, "--yes")
        wait_until(lambda: command.json("clients") == [])

    await with_broker(config, act)


async def test_the_rest(config: Config) -> None:
    name = unique("c")

    def act(broker: Broker, command: Command) -> None:
        for topic in ("a/1", "a/2", "b"):
            command.text("publish", topic, "x\x1b[2J", "--retain")
        assert "\x1b" not in command.text("retained")
        assert len(command.json("retained", "a/#")) == 2
        assert command.json("retained", "a/#", "--clear", "--yes") == {"messages": 2}
        assert [each["topic"] for each in command.json("retained")] == ["b"]
        assert command.json("ban", "--client", name, "--seconds", "60")["client_id"] == name
        assert command.json("bans")[0]["client_id"] == name
        command.text("unban", "--client", name)
        assert command.json("bans") == []
        shown = {each["name"]: each for each in command.json("limits", "subscriptions_max=7")}
        assert (shown["subscriptions_max"]["value"], shown["packet_bytes_max"]["changeable"]) == (7, False)
        assert {"area": "store", "level": "debug"} in command.json("log-level", "store", "debug")
        assert {"area": "store", "level": "debug"} not in command.json("log-level", "store", "default")
        assert command.json("reload")["reloaded"] == ["admin"]
        assert command.json("backup", "first")["name"] == "first"
        assert [each["name"] for each in command.json("backups")] == ["first"]
        assert command.json("alarms") == []
        assert command.json("bridges") == []
        code, output = command.run("cluster", "status")
        assert (code, "is no node of a cluster" in output) == (1, True)
        assert command.json("watch", "a/+")[0]["messages"] == 0
        command.text("publish", "a/1", "x")
        wait_until(lambda: command.json("watched")[0]["messages"] == 1)
        assert command.json("unwatch", "a/+") == []
        assert "limit" in command.text("limits")

    await with_broker(config, act)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("client", "nobody"), "there is no client 'nobody'"),
        (("limits", "packet_bytes_max=2048"), "packet_bytes_max"),
        (("limits", "many"), "NAME=VALUE"),
        (("log-level", "store"), "give an area and its level"),
        (("ban",), "give one of them"),
        (("clients", "--address", "here"), "address"),
    ],
)
async def test_what_is_wrong_is_one_line(config: Config, words: tuple[str, ...], said: str) -> None:
    def act(_: Broker, command: Command) -> None:
        code, output = command.run("admin", *words)
        assert code == 1
        assert output.startswith("tidemq: ")
        assert said in output
        assert output.count("\n") == 1

    await with_broker(config, act)


async def test_health(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that is well, and of one that asks for a restart (what it finds is tested elsewhere)."""

    def act(broker: Broker, command: Command) -> None:
        for words in (("health",), ("health", "--ready")):
            assert command.json(*words)["status"] == "ok"
        monkeypatch.setattr(Pulse, "look", lambda _: ["reactor 0 stands still", "the keeper has died"])
        code, output = command.run("admin", "health")
        assert (code, output) == (1, "tidemq: reactor 0 stands still, the keeper has died\n")

    await with_broker(config, act)


def test_nobody_answers(unused_tcp_port: int) -> None:
    words = ["admin", "--url", f"http://127.0.0.1:{unused_tcp_port}", "clients"]
    done = CliRunner().invoke(make_app("admin"), words)
    assert done.exit_code == 1
    assert "no broker with an admin API answers" in done.output


async def test_a_token_is_sent(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-long-and-secret-token")
    os.chmod(file, 0o600)

    def act(_: Broker, command: Command) -> None:
        assert "token is missing or wrong" in command.run("admin", "clients")[1]
        assert command.json("--token-file", str(file), "clients") == []

    await with_broker(config.model_copy(update={"admin_token_file": str(file)}), act)


async def test_top_names_who_publishes_and_who_is_behind(config: Config) -> None:
    busy, away = unique("busy"), unique("away")
    ended = threading.Event()

    def act(broker: Broker, command: Command) -> None:
        client = connected(broker, client_id=away, **kept(5))
        client.subscribe("plant/#", qos=1)
        client.drop()
        publisher = connected(broker, client_id=busy)

        def publish() -> None:
            while not ended.is_set():
                publisher.publish("plant/1", b"x", qos=1)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            code, output = command.run("top", "--count", "1", "--interval", "0.5")
        finally:
            ended.set()
            thread.join()
        assert code == 0, output
        head, publishes, behind, lost = output.split("\n\n")
        assert "1 clients, 1 sessions away" in head
        name, rate = publishes.splitlines()[1].split()[:2]
        assert (name, float(rate) > 1) == (busy, True)
        assert behind.splitlines()[1].split()[0] == away
        assert lost.splitlines() == ["has lost  messages  cause  last"]

    await with_broker(config, act)
