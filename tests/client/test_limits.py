"""Limits and policies, keep-alive, faults of the server, cancelling: what goes wrong is bounded and said."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Literal

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import LATE_S, WAIT_S, until

from tidemq.client import (
    BufferFullError,
    Client,
    ConnectError,
    DisconnectedError,
    Message,
    PublishError,
    ReasonCode,
    Scram,
    ServerRefusedError,
    SubscribeError,
)
from tidemq.client.answers import Pace
from tidemq.errors import UsageError
from tidemq.testing import Proxy
from tidemq.wire import (
    Connack,
    ConnectReturnCode,
    Disconnect,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Suback,
    encode,
)

QUICK: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}


async def silent(peer: Peer) -> None:
    """Accepts, and reads without an answer."""
    await peer.accept()
    while await peer.receive() is not None:
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": 6}, "version is 6; accepted: 3, 4, 5"),
        ({"buffer_full": "drop"}, "buffer_full is 'drop'; accepted: 'wait'"),
        ({"keep_alive_s": 70_000}, "keep_alive_s is 70000; accepted: 0 to 65535"),
        ({"receive_max": 0}, "receive_max is 0; accepted: 1 to 65535"),
        ({"auth": Scram("ann", "secret"), "version": 4}, "auth needs MQTT 5.0"),
        ({"auth": Scram("ann", "secret"), "password": "secret"}, "would send the password as it is"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Client("mqtt://host", **options)


# --- what is sent


async def test_a_full_buffer_rejects() -> None:
    async with (
        ScriptedServer(silent) as server,
        Client(server.url, buffer_full="reject", buffer_messages_max=3, close_timeout_s=0.1) as client,
    ):
        for _ in range(3):
            client.publish_nowait("t", qos=1)
        with pytest.raises(BufferFullError, match=r"3 messages \(buffer_messages_max\)"):
            await client.publish("t", qos=1)


async def test_a_full_buffer_of_bytes_rejects() -> None:
    async with ScriptedServer(silent) as server:
        async with Client(server.url, buffer_bytes_max=10_000, close_timeout_s=0.1) as client:
            for _ in range(9):
                client.publish_nowait("t", b"x" * 1000, qos=1)
            with pytest.raises(BufferFullError, match=r"10000 bytes \(buffer_bytes_max\)"):
                client.publish_nowait("t", b"x" * 1000, qos=1)


async def test_a_full_buffer_waits(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(server.url, buffer_messages_max=10) as client:
        await client.subscribe(topic, qos=1)
        await asyncio.gather(*(client.publish(topic, str(n), qos=1) for n in range(300)))
        assert len({(await anext(client.messages)).payload for _ in range(300)}) == 300


async def test_a_full_buffer_drops_the_oldest_of_qos_0(own_server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async with Client(
            own_server.url, buffer_full="drop_oldest", buffer_messages_max=4, **QUICK
        ) as client:
            await client.subscribe(topic, qos=1)
            own_server.kill()
            await until(lambda: not client.is_connected)
            receipts = [client.publish_nowait(topic, "first", qos=1)]
            receipts += [client.publish_nowait(topic, str(n)) for n in range(6)]
            for dropped in receipts[1:4]:
                with pytest.raises(BufferFullError, match="dropped for newer"):
                    await dropped.acknowledged
            client.publish_nowait(topic, "second", qos=1)
            own_server.start()
            got = [(await anext(client.messages)).payload for _ in range(4)]
    assert sorted(got) == [b"4", b"5", b"first", b"second"]


async def acknowledging(peer: Peer) -> None:
    """Accepts, and acknowledges what comes."""
    await peer.accept()
    while (packet := await peer.receive()) is not None:
        if isinstance(packet, Publish) and packet.qos:
            peer.send(Puback(packet_id=packet.packet_id))


@pytest.mark.parametrize("buffer_full", ["wait", "reject", "drop_oldest"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("buffer_messages_max", [1, 100_000])
async def test_many_wait_for_room_of_their_size(
    buffer_full: Literal["wait", "reject", "drop_oldest"], qos: int, buffer_messages_max: int
) -> None:
    """The buffer has room for nine."""
    options: dict[str, Any] = {"buffer_messages_max": buffer_messages_max, "buffer_bytes_max": 100_000}
    async with asyncio.timeout(WAIT_S), ScriptedServer(acknowledging) as server:
        async with Client(server.url, buffer_full=buffer_full, **options) as client:
            assert await client.publish_many([("t", b"x" * 10_000)] * 50, qos=qos) == 50
            assert client._outgoing.dropped == 0


async def test_many_go_on_behind_one_that_never_fits() -> None:
    messages = [("t", b"x" * 600), ("t", b"x" * 2000), ("t", b"x" * 600)]
    got: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while isinstance(packet := await peer.receive(), Publish):
            got.append(len(packet.payload))
            peer.send(Puback(packet_id=packet.packet_id))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, buffer_bytes_max=1024) as client:
            with pytest.raises(BufferFullError, match="2000 bytes"):
                await client.publish_many(messages, qos=1)
    assert got == [600, 600]


@pytest.mark.parametrize("buffer_full", ["wait", "reject", "drop_oldest"])
@pytest.mark.parametrize("options", [{"qos": 0}, {"qos": 1}, {"qos": 1, "timeout_s": WAIT_S}])
async def test_what_no_buffer_has_room_for_is_refused_at_once(
    buffer_full: Literal["wait", "reject", "drop_oldest"], options: dict[str, Any]
) -> None:
    text = r"2000 bytes takes 2064 .* accepted: 2000 \(buffer_bytes_max\)"
    async with asyncio.timeout(WAIT_S), ScriptedServer(acknowledging) as server:
        async with Client(server.url, buffer_full=buffer_full, buffer_bytes_max=2000) as client:
            with pytest.raises(BufferFullError, match=text):
                await client.publish("t", b"x" * 2000, **options)
            with pytest.raises(BufferFullError, match=text):
                client.publish_nowait("t", b"x" * 2000)
            await client.publish("t", b"x" * (2000 - 64), **options)


async def test_what_never_fits_drops_nothing(own_server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async with Client(
            own_server.url, buffer_full="drop_oldest", buffer_bytes_max=2000, close_timeout_s=0
        ) as client:
            own_server.kill()
            await until(lambda: not client.is_connected)
            kept = client.publish_nowait(topic, "kept")
            with pytest.raises(BufferFullError):
                client.publish_nowait(topic, b"x" * 2000)
            assert not kept.done


async def test_65535_in_flight_and_no_more() -> None:
    """All packet identifiers are in use at once, the rest waits; then all is acknowledged, backwards."""
    ids: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while len(ids) < 65_535:
            ids.append((await peer.receive()).packet_id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.receive(), 0.1)
        peer.send(b"".join(encode(Puback(packet_id=each), 5) for each in reversed(ids)))
        for _ in range(10):
            peer.send(Puback(packet_id=(await peer.receive()).packet_id))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        for _ in range(65_545):
            client.publish_nowait("t", b"", qos=1)
        await client.flush()
        assert client._outgoing.inflight == 0
    assert sorted(ids) == list(range(1, 65_536))


async def test_the_servers_receive_maximum_is_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(Connack(properties=Properties(receive_maximum=3)))
        waiting: list[int] = []
        for _ in range(20):
            waiting.append((await peer.receive()).packet_id)
            assert len(waiting) <= 3
            if len(waiting) == 3:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(peer.receive(), 0.01)
                peer.send(Puback(packet_id=waiting.pop(0)))
        peer.send(*(Puback(packet_id=each) for each in waiting))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        await client.publish_many((("t", b"") for _ in range(20)), qos=1)


async def test_what_the_server_does_not_take_is_refused_here() -> None:
    async def script(peer: Peer) -> None:
        limits = Properties(maximum_packet_size=100, maximum_qos=1, retain_available=False)
        await peer.accept(Connack(properties=limits))
        await peer.receive()

    async with ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(PublishError, match="packet too large"):
            await client.publish("t", b"x" * 100)
        with pytest.raises(PublishError, match="qos not supported"):
            await client.publish("t", qos=2)
        with pytest.raises(PublishError, match="retain not supported"):
            client.publish_nowait("t", retain=True)


async def test_refusals_of_messages_and_filters_are_errors() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        text = Properties(reason_string="not you")
        peer.send(Puback(packet_id=(await peer.receive()).packet_id, reason=0x87, properties=text))
        peer.send(Pubrec(packet_id=(await peer.receive()).packet_id, reason=0x97))
        peer.send(Puback(packet_id=(await peer.receive()).packet_id, reason=0x10))
        for _ in range(3):
            packet = await peer.receive()
            reason = 0x87 if packet.topic == "bad" else 0
            peer.send(Puback(packet_id=packet.packet_id, reason=reason))
        packet = await peer.receive()
        peer.send(Suback(packet_id=packet.packet_id, reasons=(1, 0x87), properties=text))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(PublishError, match=r"publishing to 't': not authorized \(0x87\)") as caught:
            await client.publish("t", qos=1)
        assert caught.value.reason == ReasonCode.NOT_AUTHORIZED
        with pytest.raises(PublishError, match="quota"):
            await client.publish("t", qos=2)
        assert await client.publish("t", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        with pytest.raises(PublishError, match="'bad'"):
            await client.publish_many([("a", b""), ("bad", b""), ("b", b"")], qos=1)
        with pytest.raises(SubscribeError, match="not you") as refused:
            await client.subscribe("a", "b", qos=1)
        assert refused.value.reasons == (1, 0x87)


# --- what is received


async def test_a_program_that_does_not_take_stops_the_reading(server: Server, topic: str) -> None:
    """The queue stays within its limit, nothing is lost, and the other client is not held up."""
    count = 20_000
    # TideMQ does not read PINGREQ of a client that it cannot write to
    keep_alive_s = 1 if server.name == "mosquitto" else 60
    slow = Client(server.url, queue_messages_max=100, keep_alive_s=keep_alive_s, ping_timeout_s=0.2)
    async with asyncio.timeout(WAIT_S), slow, Client(server.url) as fast:
        await slow.subscribe(topic)
        await fast.publish_many((topic, b"%d" % n + b"x" * 400) for n in range(count))
        await asyncio.sleep(1.5)
        assert slow.is_connected, "a PINGRESP behind messages that are not read is no time-out"
        assert 100 <= len(slow.messages) < 3000
        got = 0
        async for message in slow.messages:
            assert message.payload.startswith(b"%d" % got)
            got += 1
            if got == count:
                break
            assert len(slow.messages) < 3000


async def test_an_answer_behind_messages_is_read(server: Server, topic: str) -> None:
    """A full queue does not hold up the PUBACK that the program's only task waits for."""
    async with asyncio.timeout(WAIT_S), Client(server.url, queue_messages_max=20) as client:
        await client.subscribe(topic)
        for n in range(100):
            await client.publish(topic, str(n), qos=1)
        assert len(client.messages) == 100


async def test_qos_1_is_acknowledged_when_the_next_is_taken() -> None:
    acknowledged: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(*(Publish(topic="t", qos=1, packet_id=n) for n in range(1, 5)))
        while isinstance(packet := await peer.receive(), Puback):
            acknowledged.append(packet.packet_id)

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        await client.messages.wait()
        await asyncio.sleep(0.05)
        assert acknowledged == []
        await anext(client.messages)
        await asyncio.sleep(0.05)
        assert acknowledged == []
        assert len(await client.messages.take(2)) == 2
        await asyncio.sleep(0.05)
        assert acknowledged == [1]


# --- keep-alive


async def test_a_silent_server_is_given_up(server: Server, proxy: Proxy, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async with Client(proxy.url, keep_alive_s=1, ping_timeout_s=0.2, **QUICK) as client:
            proxy.stall()
            begun = time.monotonic()
            await until(lambda: not client.is_connected)
            assert 1.0 <= time.monotonic() - begun < LATE_S
            proxy.resume()
            await client.wait_connected()
            assert proxy.connections >= 2


async def test_a_silent_server_is_given_up_even_while_we_send(proxy: Proxy, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async with Client(proxy.url, keep_alive_s=1, ping_timeout_s=0.2, **QUICK) as client:
            proxy.stall()
            while client.is_connected:
                client.publish_nowait(topic)
                await asyncio.sleep(0.02)
            proxy.resume()
            await client.wait_connected()


async def test_the_servers_keep_alive_counts() -> None:
    pings: list[float] = []
    second = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept(Connack(properties=Properties(server_keep_alive_s=1)))
        while await peer.receive() is not None:
            pings.append(time.monotonic())
            peer.send(b"\xd0\x00")
            if len(pings) == 2:
                second.set()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        begun = time.monotonic()
        async with Client(server.url, keep_alive_s=600):
            await second.wait()
    assert 0.9 < pings[0] - begun < 5
    assert 1.9 < pings[1] - begun < 10


# --- faults of the server


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00", 0x81),  # packet type 0
        (b"\x36\x07\x00\x01t\x00\x01\x00\x00", 0x81),  # QoS 3
        (b"\x30\x06\x00\x03t/#\x00", 0x81),  # a wildcard in a topic name
        (b"\x30\xff\xff\xff\xff\x01", 0x81),  # a length of five bytes
        (b"\x10\x00", 0x81),  # CONNECT
        (b"\x30\x06\x00\x00\x03\x23\x00\x05", 0x94),  # a topic alias that was not allowed
        (b"\x30\x80\x80\x80\x01", 0x95),  # longer than what we said
    ],
)
async def test_a_server_that_breaks_mqtt_is_told_and_left(
    data: bytes, reason: int, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        if server.connections == 1:
            peer.send(data)
        told.append(await peer.receive())

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        with caplog.at_level(logging.WARNING):
            async with Client(server.url, packet_bytes_max=100_000, **QUICK) as client:
                await until(lambda: server.connections >= 2 and client.is_connected)
    assert isinstance(told[0], Disconnect)
    assert told[0].reason in (reason, 0x81, 0x82, 0x90)
    assert "broke MQTT" in caplog.text


async def test_more_than_our_receive_maximum() -> None:
    told: list[object] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        peer.send(*(Publish(topic="t", qos=1, packet_id=n) for n in range(1, 4)))
        told.append(await peer.receive())

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, receive_max=2, reconnect=False)
        await client.connect()
        client.publish_nowait("begin")
        await until(lambda: told)
        assert len(await client.messages.take()) == 2
        with pytest.raises(ConnectError, match="broke MQTT"):
            await anext(client.messages)
        await client.disconnect()
    assert isinstance(told[0], Disconnect)
    assert told[0].reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize(
    ("version", "connack", "text", "reason"),
    [
        (4, Connack(reason=ConnectReturnCode.NOT_AUTHORIZED), "not authorized", 0x87),
        (4, Connack(reason=ConnectReturnCode.IDENTIFIER_REJECTED), "identifier not valid", 0x85),
        (
            5,
            Connack(reason=0x86, properties=Properties(reason_string="who?")),
            r"user name or password \(0x86\) \(who\?\)",
            0x86,
        ),
        (5, Connack(reason=0x9D, properties=Properties(server_reference="other:1")), "server moved", 0x9D),
    ],
)
async def test_a_refused_connection_says_why(
    version: Literal[3, 4, 5], connack: Connack, text: str, reason: int
) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(connack)

    async with ScriptedServer(script, version) as server:
        with pytest.raises(ServerRefusedError, match=text) as caught:
            async with Client(server.url, version=version):
                pass
    assert caught.value.reason == reason
    assert caught.value.server_reference == connack.properties.server_reference
    assert server.url in str(caught.value)


async def test_a_server_that_says_nothing() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        await peer.receive()

    async with ScriptedServer(script) as server:
        with pytest.raises(ConnectError, match=r"no answer to CONNECT within 0\.1 s"):
            async with Client(server.url, connect_timeout_s=0.1):
                pass


async def test_a_server_that_is_none() -> None:
    async def script(peer: Peer) -> None:
        peer.send(b"SSH-2.0-OpenSSH_9.2p1\r\n")

    async with ScriptedServer(script) as server:
        with pytest.raises(ConnectError, match=r"broke MQTT|before CONNACK"):
            async with Client(server.url):
                pass


async def test_a_callback_may_end_its_own_client(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        client = Client(server.url)
        await client.connect()

        async def stop(message: Message) -> None:
            await client.disconnect()

        await client.subscribe(topic, callback=stop)
        await client.publish(topic)
        with pytest.raises(StopAsyncIteration):
            await anext(client.messages)


# --- cancelling and closing


async def test_cancelled_calls_leave_the_client_whole(server: Server, proxy: Proxy, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(proxy.url) as client:
        await client.subscribe(topic, qos=1)
        proxy.stall()
        calls = [
            client.publish(topic, "late", qos=1),
            client.subscribe(f"{topic}/other"),
            client.unsubscribe(f"{topic}/other"),
            client.request(f"{topic}/none"),
            anext(client.messages),
            client.messages.take(),
        ]
        tasks = [asyncio.ensure_future(each) for each in calls]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        proxy.resume()
        await client.publish(topic, "next", qos=1)
        assert [(await anext(client.messages)).payload for _ in range(2)] == [b"late", b"next"]


async def test_connecting_may_be_cancelled() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        assert await peer.receive() is None  # the client closes

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url)
        task = asyncio.create_task(client.connect())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(0.05)


async def test_a_closed_client_says_so(server: Server, topic: str) -> None:
    async with Client(server.url) as client:
        subscription = await client.subscribe(topic)
        iterating = asyncio.create_task(anext(subscription.messages, None))
        await asyncio.sleep(0)
    assert await iterating is None
    assert [message async for message in client.messages] == []
    for call in (client.publish(topic), client.subscribe(topic), client.publish(topic, qos=1)):
        with pytest.raises(DisconnectedError, match="the client is closed"):
            await call
    await client.disconnect()


async def test_the_end_waits_for_acknowledgements(server: Server, topic: str) -> None:
    async with Client(server.url) as watching:
        await watching.subscribe(topic, qos=1)
        async with Client(server.url) as client:
            receipts = [client.publish_nowait(topic, b"x" * 1000, qos=1) for _ in range(300)]
        assert all(each.done and each.reason == 0 for each in receipts)
        async with asyncio.timeout(WAIT_S):
            for _ in range(300):
                assert isinstance(await anext(watching.messages), Message)


@pytest.mark.parametrize(
    ("per_s_max", "round_trip_s", "low", "high"),
    [
        (2_000_000, 0.0001, 1024, 2048),  # the same machine
        (50_000, 0.0001, 1024, 2048),  # a slow server, which more would not make quicker
        (1_000_000, 0.1, 50_000, 100_000),  # one that is far away
        (20_000, 0.1, 1024, 8192),  # far away and slow
    ],
)
def test_many_messages_are_under_way_only_where_that_brings_more(
    per_s_max: int, round_trip_s: float, low: int, high: int
) -> None:
    pace, done, now_s = Pace(100_000), 0, 1.0
    for _ in range(30):
        answered = pace.ahead - pace.ahead // 2
        done += answered
        now_s += max(answered / per_s_max, round_trip_s)
        pace.look(done, now_s)
    assert low <= pace.ahead <= high


def test_a_small_buffer_bounds_the_pace() -> None:
    pace = Pace(10)
    for n in range(1, 10):
        pace.look(n * 5, float(n))
    assert pace.ahead <= 10


async def test_publish_many_has_few_messages_under_way(server: Server, topic: str) -> None:
    most = 0

    async def watch(client: Client) -> None:
        nonlocal most
        while True:
            most = max(most, client.held_messages)
            await asyncio.sleep(0)

    async with Client(server.url) as client:
        watching = asyncio.create_task(watch(client))
        assert await client.publish_many(((topic, b"") for _ in range(20_000)), qos=1) == 20_000
        watching.cancel()
    assert 0 < most < 20_000
