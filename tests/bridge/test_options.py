"""What the keys of `[[bridges]]` do: addresses in turns, sessions, notifications, ALPN, WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from bridge.kit import bridge_to, broker_with, config_with, connected, figures, take, url_of
from client.servers import Server
from waiting import until
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from tidemq import Broker
from tidemq.bridge import crossing
from tidemq.client import Client
from tidemq.testing import Proxy


async def test_the_first_address_is_tried_first_unless_they_take_turns(far: Server, place: str) -> None:
    for round_robin, expected in ((False, [0, 0, 0]), (True, [0, 1, 0])):
        async with Proxy(far.port) as one, Proxy(far.port) as two:
            proxies = [one, two]
            topic = {"filter": f"{place}/#"}
            bridge = bridge_to(one.url, topic, client_id=place, round_robin=round_robin)
            bridge["addresses"] = [each.url for each in proxies]
            found = []
            async with broker_with(bridge) as broker:
                for count in (1, 2, 3):
                    await until(
                        lambda count=count: figures(broker).status.connects == count  # type: ignore[misc]
                    )
                    found.append([each.url for each in proxies].index(figures(broker).status.address))
                    proxies[found[-1]].cut()
            assert found == expected


async def test_with_a_clean_session_neither_side_keeps_anything(far: Server, place: str) -> None:
    topic = {"filter": f"{place}/#", "direction": "both", "qos": 1}
    async with Proxy(far.port) as proxy:
        bridge = bridge_to(proxy.url, topic, client_id=place, clean_session=True)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
            await connected(broker)
            await here.subscribe(f"{place}/#", qos=1)
            await there.subscribe(f"{place}/#", qos=1)
            proxy.refuse()
            proxy.cut()
            await until(lambda: not figures(broker).status.is_connected, "the line is noticed")
            assert broker.monitor is not None
            clients = broker.monitor.clients
            await until(lambda: _is_away(broker), "the session here has ended")
            await here.publish(f"{place}/lost", b"1", qos=1)
            await there.publish(f"{place}/lost", b"2", qos=1)
            await proxy.open()
            await until(lambda: figures(broker).status.connects == 2, "it has come back")
            await here.publish(f"{place}/a", b"3", qos=1)
            await there.publish(f"{place}/a", b"4", qos=1)
            assert sorted([payload for _, payload in await take(here, 3)]) == [b"1", b"3", b"4"]
            assert sorted([payload for _, payload in await take(there, 3)]) == [b"2", b"3", b"4"]
            assert await clients.one("$bridge/far") is not None


async def _is_away(broker: Broker) -> bool:
    assert broker.monitor is not None
    return await broker.monitor.clients.one("$bridge/far") is None


async def test_a_notification_may_be_for_this_side_alone(far: Server, place: str) -> None:
    state = f"{place}/state"
    settings: dict[str, Any] = {
        "notifications_local_only": True,
        "notification_topic": state,
        "client_id": place,
    }
    bridge = bridge_to(far.url, {"filter": f"{place}/x/#", "qos": 1}, **settings)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        await here.subscribe(state)
        async for message in here.messages:
            if message.payload == b"1":
                break
        await here.publish(f"{place}/x/end", b"2", qos=1)
        assert await take(there, 1) == [(f"{place}/x/end", b"2")]


async def test_a_tidemq_at_the_other_side_hears_whether_the_bridge_is_connected(place: str) -> None:
    state = f"$SYS/broker/connection/{place}/state"
    async with Broker(config_with()) as far, Client(url_of(far)) as there:
        await there.subscribe(state)
        async with Proxy(far.port) as proxy, broker_with(bridge_to(proxy.url, client_id=place)) as broker:
            await connected(broker)
            assert await take(there, 1) == [(state, b"1")]
            proxy.refuse()
            proxy.cut()
            assert await take(there, 1) == [(state, b"0")]  # its will
            await proxy.open()
            assert await take(there, 1) == [(state, b"1")]
        assert await take(there, 1) == [(state, b"0")]


async def test_the_other_side_is_asked_for_the_protocol_of_alpn(tmp_path: Path, place: str) -> None:
    """As servers want it that take MQTT on port 443."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["http/1.1", "x-amzn-mqtt-ca"])
    chosen: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def take_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not chosen.done():
            chosen.set_result(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        writer.close()

    server = await asyncio.start_server(take_connection, "127.0.0.1", 0, ssl=context)
    url = f"mqtts://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls = {"ca": tmp_path / "ca.pem", "alpn": "x-amzn-mqtt-ca"}
    async with broker_with(bridge_to(url, tls=tls, client_id=place)):
        assert await chosen == "x-amzn-mqtt-ca"
    server.close()


async def test_a_bridge_crosses_by_websocket(place: str) -> None:
    listener = {"name": "web", "host": "127.0.0.1", "port": 0, "websocket": {}}
    async with Broker(config_with(listeners=[listener])) as far, Client(url_of(far)) as there:
        url = f"ws://{far.addresses['web']}/mqtt"
        topic = {"filter": "#", "direction": "both", "qos": 2}
        async with broker_with(bridge_to(url, topic, client_id=place)) as broker:
            await connected(broker)
            async with Client(url_of(broker)) as here:
                await there.subscribe("a", qos=2)
                payloads = [bytes([number % 256]) * 20_000 for number in range(100)]
                publishing = here.publish_many([("a", each) for each in payloads], qos=2)
                came, _ = await asyncio.gather(take(there, len(payloads)), publishing)
                assert [payload for _, payload in came] == payloads
                await here.subscribe("b", qos=2)
                publishing = there.publish_many([("b", each) for each in payloads], qos=2)
                came, _ = await asyncio.gather(take(here, len(payloads)), publishing)
                assert [payload for _, payload in came] == payloads


async def test_a_frame_of_the_other_side_is_not_kept_beyond_the_limit(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossing, "REMOTE_PACKET_BYTES_MIN", 1000)
    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def send_one(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await connection.send(bytes(5001))
            await connection.wait_closed()
        if not ended.done():
            ended.set_result(connection.close_code)

    async with serve(send_one, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/mqtt"
        async with broker_with(bridge_to(url, client_id=place), limits={"packet_bytes_max": 5000}) as broker:
            assert await ended == CloseCode.MESSAGE_TOO_BIG
            await until(lambda: figures(broker).status.failures > 0, "the bridge has noticed")


async def test_the_session_at_the_other_side_follows_and_ends_with_the_bridge(place: str) -> None:
    async def filters(far: Broker) -> list[str] | None:
        assert far.monitor is not None
        found = await far.monitor.clients.one(place)
        return None if found is None else sorted(filter for filter, _, _ in found.filters)

    async with Broker(config_with()) as far:
        topics = [{"filter": name, "direction": "in", "qos": 1} for name in ("a", "b", "c")]
        configs = [config_with(bridge_to(url_of(far), *topics[:2], client_id=place))]
        async with Broker(configs[-1], reread=lambda: configs[-1]) as broker:
            await connected(broker)
            assert await filters(far) == ["a", "b"]
            configs.append(config_with(bridge_to(url_of(far), *topics[1:], client_id=place)))
            assert (await broker.reload())["bridges"] == ""
            await connected(broker)
            assert await filters(far) == ["b", "c"]
            configs.append(config_with())
            assert (await broker.reload())["bridges"] == ""

            async def is_gone() -> bool:
                return await filters(far) is None

            await until(is_gone, "its session there has ended")


async def test_a_reload_that_goes_on_while_the_broker_stops_leaves_nothing(far: Server, place: str) -> None:
    configs = [config_with()]
    broker = Broker(configs[-1], reread=lambda: configs[-1])
    await broker.start()
    names = [f"b{number}" for number in range(5)]
    configs.append(
        config_with(
            *(bridge_to(far.url, {"filter": "a"}, name=each, client_id=f"{place}{each}") for each in names)
        )
    )
    reloading = asyncio.create_task(broker.reload())
    await until(lambda: broker.monitor is not None and bool(broker.monitor.bridges()), "it has begun")
    await broker.stop()
    await reloading
    assert broker.monitor is not None
    assert not broker.monitor.bridges()
