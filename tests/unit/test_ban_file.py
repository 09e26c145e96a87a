"""Bans of a file: in force from the start, followed while the broker runs, and ended in the file alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import CONNACK, DISCONNECT, connect
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.broker.access.bans import BANS_MAX, Ban, Bans
from tidemq.errors import ConfigError

BANNED = 0x8A


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    file = tmp_path / "bans.toml"
    file.write_text("")
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        store="memory",
        admin_port=unused_tcp_port,
        bans_file=file,
    )


def write(config: Config, text: str) -> None:
    """As an editor does it: the file is never half written."""
    assert config.bans_file is not None
    fresh = config.bans_file.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(config.bans_file)


def asked(broker: Broker, method: str, path: str = "/api/v1/bans", **query: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request(method, f"{path}?{urlencode(query)}" if query else path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def reason(broker: Broker, client_id: str, **settings: Any) -> int:
    """Of CONNACK."""
    client = Client(broker.port, 5)
    client.send(connect(client_id, 5, **settings))
    answer = int(client.expect(CONNACK).reason)
    client.drop()
    return answer


async def during(config: Config, act: Callable[[Broker], None]) -> None:
    async with Broker(config) as broker:
        await asyncio.to_thread(act, broker)


async def test_a_file_keeps_out_whom_it_names_from_the_start(config: Config) -> None:
    write(
        config,
        '[[bans]]\nclient_id = "pump"\nreason = "floods"\nuntil = 2999-01-01T00:00:00Z\n'
        '[[bans]]\nusername = "ann"\n'
        '[[bans]]\nclient_id = "old"\nuntil = 2001-01-01T00:00:00Z\n'
        '[[bans]]\naddress = "192.0.2.0/24"\n',
    )

    def act(broker: Broker) -> None:
        assert reason(broker, "pump") == reason(broker, unique("c"), username="ann") == BANNED
        assert reason(broker, "old") == reason(broker, unique("c"), username="bob") == 0
        rows = asked(broker, "GET")[1]["bans"]
        assert [(each["client_id"], each["username"], each["address"]) for each in rows] == [
            ("pump", None, None),
            (None, "ann", None),
            (None, None, "192.0.2.0/24"),
        ]
        assert {(each["by"], each["from_file"]) for each in rows} == {("bans_file", True)}
        assert (rows[0]["reason"], rows[0]["until"][:4]) == ("floods", "2999")
        assert broker.counters()["connects_banned"] == 2
        status, answer = asked(broker, "DELETE", client_id="pump")
        assert (status, "bans_file" in answer["detail"]) == (409, True)
        assert reason(broker, "pump") == BANNED

    await during(config, act)


async def test_a_change_is_followed_and_puts_out_who_is_connected(config: Config) -> None:
    name = unique("pump")

    def act(broker: Broker) -> None:
        client, other = connected(broker, client_id=name), connected(broker)
        write(config, f'[[bans]]\nclient_id = "{name}"\n')
        assert client.expect(DISCONNECT).reason == 0x98
        assert reason(broker, name) == BANNED
        other.ping()
        (first,) = asked(broker, "GET")[1]["bans"]
        write(config, f'[[bans]]\nclient_id = "{name}"\n[[bans]]\naddress = "127.0.0.0/8"\n')
        assert other.expect(DISCONNECT).reason == 0x98
        assert first in asked(broker, "GET")[1]["bans"]  # with its date
        write(config, "")
        wait_until(lambda: asked(broker, "GET")[1] == {"bans": []})
        connected(broker, client_id=name).drop()
        assert (broker.counters()["ban_reloads"], broker.counters()["ban_reloads_failed"]) == (3, 0)

    await during(config, act)


async def test_a_wrong_change_leaves_the_old_bans_in_force(config: Config) -> None:
    write(config, '[[bans]]\nclient_id = "pump"\n')
    async with Broker(config) as broker:
        write(config, "[[bans]]\n")
        assert "bans.0" in (await broker.reload())["bans"]
        assert await asyncio.to_thread(reason, broker, "pump") == BANNED
        counters = broker.counters()
        assert (counters["ban_reloads"], counters["ban_reloads_failed"]) == (0, 1)
        write(config, "")
        assert (await broker.reload())["bans"] == ""
        assert await asyncio.to_thread(reason, broker, "pump") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[bans]]\n", "bans.0: it has to name one of"),
        ('[[bans]]\nclient_id = "a"\nusername = "b"\n', "bans.0: it has to name one of"),
        ('[[bans]]\naddress = "here"\n', "bans.0: 'here'"),
        ('[[bans]]\naddress = "10.0.0.1/8"\n', "bans.0: 10.0.0.1/8"),
        ('[[bans]]\nclient_id = ""\n', "bans.0.client_id"),
        ('[[bans]]\nclient = "a"\n', "bans.0.client: it is unknown"),
        ('[[bans]]\nclient_id = "a"\nuntil = 2030-01-01T00:00:00\n', "bans.0.until"),
        ('[[bans]]\nclient_id = "a"\n[[bans]]\nclient_id = "a"\n', "bans.1: client_id 'a' is there twice"),
        ("[[bans\n", "line 1"),
        ("\0", "the file"),
        ('[[bans]]\nclient_id = "a"\n' * (BANS_MAX + 1), f"at most {BANS_MAX}"),
    ],
)
async def test_a_wrong_file_is_refused_at_the_start(config: Config, text: str, said: str) -> None:
    write(config, text)
    with pytest.raises(ConfigError) as refused:
        await Broker(config).start()
    assert str(config.bans_file) in str(refused.value)
    assert said in str(refused.value)
    assert "accepted: [[bans]] with one of client_id, username, address" in str(refused.value)


async def test_a_file_that_is_not_there_is_refused_at_the_start(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: the file: .*accepted: a readable file"):
        await Broker(config.model_copy(update={"bans_file": tmp_path / "none.toml"})).start()


def test_a_look_up_takes_as_long_with_ten_thousand_networks() -> None:
    few, many = Bans(), Bans()
    for number in range(BANS_MAX):
        ban = Ban("address", f"10.{number // 256}.{number % 256}.0/24", "", "", 0.0, None)
        many.add(ban)
        if number < 10:
            few.add(ban)
    many.add(Ban("address", "2001:db8::/32", "", "", 0.0, None))

    def cost_s(bans: Bans) -> float:
        began_s = time.process_time()
        for _ in range(2000):
            assert bans.find(peer="192.0.2.7:5000") is None
        return time.process_time() - began_s

    assert min(cost_s(many) for _ in range(3)) < 5 * min(cost_s(few) for _ in range(3)) + 0.05
    for peer, found in {
        "10.39.15.200:1": "10.39.15.0/24",
        "10.39.16.1:1": None,
        "[2001:db8:1::9]:1": "2001:db8::/32",
        "[2001:db9::9]:1": None,
        "unix:": None,
    }.items():
        ban_found = many.find(peer=peer)
        assert (ban_found.value if ban_found else None) == found
    many.remove("address", "10.39.15.0/24")
    assert many.find(peer="10.39.15.200:1") is None
