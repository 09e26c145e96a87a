"""Bridges among others: loops end, nobody takes a bridge's place, and they change while the broker runs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import urllib.request
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from bridge.kit import bridge_to, broker_with, config_with, connected, figures, take, url_of
from client.servers import Server
from waiting import until

from tidemq import Broker, Config
from tidemq.bridge.relay import HOPS
from tidemq.broker.monitoring import conditions
from tidemq.broker.providers import Verdict
from tidemq.client import Client
from tidemq.client.errors import ServerRefusedError
from tidemq.testing.ports import free_port
from tidemq.wire import Connack, Connect, Properties, ReasonCode, decode, encode


async def test_a_ring_of_three_brokers_ends() -> None:
    """Each sends everything to the next. A message comes once a round, and no further than `hops_max`."""
    ports = [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        brokers = []
        for place in range(3):
            following = f"mqtt://127.0.0.1:{ports[(place + 1) % 3]}"
            bridge = bridge_to(
                following,
                {"filter": "a/#", "qos": 1},
                hops_max=5,
                client_id=f"ring-{place}",
                notifications=False,
            )
            config = config_with(bridge, port=ports[place])
            brokers.append(await stack.enter_async_context(Broker(config)))
        for broker in brokers:
            await connected(broker)
        first = await stack.enter_async_context(Client(url_of(brokers[0])))
        await first.subscribe("a/#", qos=1)
        await first.publish("a/x", b"1", qos=1)
        hops = []
        for _ in range(2):
            message = await anext(first.messages)
            hops.append(dict(message.properties.user_properties).get(HOPS))
        assert hops == [None, "3"]  # as it was published, and once round the ring
        # five bridges were crossed; the sixth, from the last broker to the first, would be too many
        dropped = brokers[2]
        await until(lambda: dropped.counters()["dropped_bridge_hops"] == 1)
        assert [figures(each).counts["messages_out"] for each in brokers] == [2, 2, 1]


async def test_two_bridges_between_two_brokers_end_what_goes_round(far: Server, place: str) -> None:
    topic = {"filter": f"{place}/#", "direction": "both", "qos": 1}
    twice = [
        bridge_to(far.url, topic, name=name, client_id=f"{place}{name}", hops_max=3) for name in ("p", "q")
    ]
    async with broker_with(*twice) as broker, Client(url_of(broker)) as here:
        await connected(broker, "p", "q")
        await here.publish(f"{place}/a", b"1", qos=1)
        # each takes it there, the other brings it back, each takes that there, and the other drops it
        await until(lambda: broker.counters()["dropped_bridge_hops"] == 2)
        found = [figures(broker, name).counts for name in ("p", "q")]
        assert [(each["messages_out"], each["messages_in"]) for each in found] == [(2, 1), (2, 1)]


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_no_client_is_let_in_under_a_bridge_s_identifier(place: str, version: int) -> None:
    unreachable = f"mqtt://127.0.0.1:{free_port()}"
    async with broker_with(bridge_to(unreachable, client_id=place)) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(encode(Connect(version=version, client_id="$bridge/far"), version))
        found = decode(await reader.read(100), version)
        assert found is not None
        assert isinstance(found[0], Connack)
        assert found[0].reason == (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if version == 5 else 2)
        writer.close()


async def test_an_authenticator_cannot_give_it_away_either() -> None:
    class Renames:
        def authenticate(self, request: Any) -> Verdict:
            return Verdict(client_id="$bridge/far")

    async with Broker(config_with(), authenticator=Renames()) as broker:
        with pytest.raises(ServerRefusedError, match="client identifier not valid"):
            async with Client(url_of(broker), reconnect=False):
                pass


async def test_the_bridges_own_listener_wants_the_secret(place: str) -> None:
    """Another user of the machine finds the socket's name, and no way in."""
    unreachable = f"mqtt://127.0.0.1:{free_port()}"
    async with broker_with(bridge_to(unreachable, client_id=place)):
        path = await asyncio.to_thread(_abstract_socket)
        for client_id in ("$bridge/far", "other"):
            for password in (None, b"guess"):
                with socket.socket(socket.AF_UNIX) as guess:
                    guess.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(guess, path)
                    connect = Connect(version=5, client_id=client_id, username="x", password=password)
                    await loop.sock_sendall(guess, encode(connect, 5))
                    found = decode(await loop.sock_recv(guess, 100), 5)
                    assert found is not None
                    assert isinstance(found[0], Connack)
                    assert found[0].reason == ReasonCode.NOT_AUTHORIZED


def _abstract_socket() -> str:
    """The bridges' listener of this process; others on this machine have theirs."""
    own = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            own.add(os.readlink(each))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) == 8 and row[7].startswith("@tidemq-bridge-")]
    [found] = {row[7] for row in named if f"socket:[{row[6]}]" in own}
    return found.replace("@", "\0", 1)


async def test_bridges_are_added_changed_and_removed_while_the_broker_runs(far: Server, place: str) -> None:
    configs: list[Config] = []

    def now(*bridges: dict[str, Any]) -> None:
        configs.append(config_with(*bridges))

    one = bridge_to(far.url, {"filter": f"{place}/1/#", "qos": 1}, client_id=place)
    two = bridge_to(far.url, {"filter": f"{place}/2/#", "qos": 1}, client_id=place)
    other = bridge_to(
        far.url, {"filter": f"{place}/3/#", "direction": "in"}, client_id=f"{place}x", name="other"
    )
    now()
    async with Broker(configs[-1], reread=lambda: configs[-1]) as broker:
        async with Client(url_of(broker)) as here, Client(far.url) as there:
            await there.subscribe(f"{place}/#", qos=1)
            now(one, other)
            assert (await broker.reload())["bridges"] == ""
            await connected(broker, "far", "other")
            since = figures(broker, "other").status.since
            await here.publish(f"{place}/1/a", b"1", qos=1)
            assert await take(there, 1) == [(f"{place}/1/a", b"1")]

            now(two, other)
            assert (await broker.reload())["bridges"] == ""
            await connected(broker, "far")
            await here.publish(f"{place}/1/a", b"2", qos=1)
            await here.publish(f"{place}/2/a", b"3", qos=1)
            assert await take(there, 1) == [(f"{place}/2/a", b"3")]
            assert figures(broker, "other").status.since == since  # it went on

            wrong = two | {"password_file": "/nonexistent"}
            now(wrong)
            assert "/nonexistent" in (await broker.reload())["bridges"]
            assert {each.name for each in broker.monitor.bridges()} == {"far", "other"}  # type: ignore[union-attr]
            assert figures(broker, "far").status.is_connected

            now(other)
            assert (await broker.reload())["bridges"] == ""
            assert [each.name for each in broker.monitor.bridges()] == ["other"]  # type: ignore[union-attr]
            assert broker.monitor is not None
            await until(lambda: _has_no_session(broker, "$bridge/far"))


async def _has_no_session(broker: Broker, client_id: str) -> bool:
    assert broker.monitor is not None
    return await broker.monitor.clients.one(client_id) is None


async def test_sessions_of_bridges_that_are_gone_end_at_the_start(tmp_path: Path, place: str) -> None:
    unreachable = f"mqtt://127.0.0.1:{free_port()}"
    disk = {"store": "rocksdb", "data": tmp_path / "data"}
    async with broker_with(bridge_to(unreachable, client_id=place), **disk) as broker:
        async with Client(url_of(broker)) as here:
            await here.publish("a", b"1", qos=1)
        await until(lambda: figures(broker).queued_messages == 1)
    other = bridge_to(unreachable, client_id=place, name="other")
    async with broker_with(other, **disk) as broker:
        await until(lambda: _has_no_session(broker, "$bridge/far"))
        assert not await _has_no_session(broker, "$bridge/other")


async def test_a_filter_that_is_gone_at_the_start_is_unsubscribed(tmp_path: Path, place: str) -> None:
    unreachable = f"mqtt://127.0.0.1:{free_port()}"
    disk = {"store": "rocksdb", "data": tmp_path / "data"}
    async with broker_with(bridge_to(unreachable, {"filter": "a", "qos": 1}), **disk):
        pass
    async with broker_with(bridge_to(unreachable, {"filter": "b", "qos": 1}), **disk) as broker:
        async with Client(url_of(broker)) as here:
            await here.publish("a", b"1", qos=1)
            await here.publish("b", b"2", qos=1)
        await until(lambda: figures(broker).queued_messages == 1)


async def test_a_bridge_that_is_down_is_an_alarm_and_in_the_metrics(
    own_far: Server, place: str, admin_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "BRIDGE_DOWN_S", 0.5)
    bridge = bridge_to(own_far.url, {"filter": "a", "qos": 1}, client_id=place)
    async with broker_with(bridge, admin_port=admin_port) as broker, Client(url_of(broker)) as here:
        await here.publish("a", b"1", qos=1)
        assert broker.monitor is not None
        alarms = broker.monitor.alarms
        await until(lambda: [each.name for each in alarms.active] == ["bridge-far"])
        assert "Connection refused" in alarms.active[0].text
        await until(lambda: figures(broker).queued_messages == 1)
        text = await asyncio.to_thread(_read, admin_port, "/metrics")
        assert 'tidemq_bridge_up{bridge="far"} 0.0' in text
        assert 'tidemq_bridge_queued_messages{bridge="far"} 1.0' in text
        assert 'tidemq_alarm{reason="bridge-far"} 1.0' in text
        [shown] = json.loads(await asyncio.to_thread(_read, admin_port, "/api/v1/bridges"))["bridges"]
        assert (shown["name"], shown["queued_messages"], shown["connects"]) == ("far", 1, 0)
        assert "Connection refused" in shown["last_error"]
        own_far.start()
        await connected(broker)
        await until(lambda: figures(broker).queued_messages == 0)
        text = await asyncio.to_thread(_read, admin_port, "/metrics")
        assert 'tidemq_bridge_up{bridge="far"} 1.0' in text
        assert 'tidemq_bridge_messages_out_total{bridge="far"} 1.0' in text


def _read(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


async def test_properties_of_its_own_are_not_believed_beyond_the_limit(place: str) -> None:
    """A client may set the count itself: then its message goes less far, and harms nobody."""
    async with Broker(config_with()) as other, Client(url_of(other)) as there:
        bridge = bridge_to(url_of(other), {"filter": "a", "qos": 1}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await there.subscribe("#", qos=1)
            far = Properties(user_properties=((HOPS, "8"),))
            await here.publish("a", b"1", qos=1, properties=far)
            await here.publish("a", b"2", qos=1)
            assert await take(there, 1) == [("a", b"2")]
            assert broker.counters()["dropped_bridge_hops"] == 1
