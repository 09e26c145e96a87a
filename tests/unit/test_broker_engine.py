"""The broker on its engine: what a program, its providers and its plugins see of real connections."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from waiting import WAIT_S

from tidemq import Broker, Config, HeldMessage, hookimpl
from tidemq.broker import Verdict
from tidemq.engine.door.events import ConnectRequest
from tidemq.store import MemoryStore
from tidemq.wire import (
    Auth,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
    encode,
)

QUIET = Config(host="127.0.0.1", port=0, sys_interval_s=0, reactors=2, store="memory")


class Client:
    """Sends packets and reads them, and nothing else."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: Literal[3, 4, 5]
    ) -> None:
        self._reader, self._writer, self._decoder = reader, writer, Decoder(version)

    async def ask(self, packet: Packet) -> Any:
        """Sends a packet and gives the next that comes."""
        self._writer.write(encode(packet, self._decoder.version))
        return await self.read()

    async def read(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            while (packet := next(self._decoder, None)) is None:
                data = await self._reader.read(4096)
                if not data:
                    return None
                self._decoder.feed(data)
        return packet


@asynccontextmanager
async def client(broker: Broker, version: Literal[3, 4, 5] = 5) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    yield Client(reader, writer, version)
    writer.close()


@asynccontextmanager
async def running(config: Config = QUIET, **options: Any) -> AsyncIterator[Broker]:
    """A broker, and nothing left of it afterwards."""
    async with Broker(config, **options) as broker:
        engine = broker._engine
        assert engine is not None
        yield broker
    assert not any(engine.live_objects().values()), engine.live_objects()


async def test_a_session_its_queue_and_a_retained_message_go_from_broker_to_broker() -> None:
    store = MemoryStore()
    connect = Connect(version=5, client_id="c", clean_start=False, properties=Properties(session_expiry_s=60))
    async with running(store=store) as broker, client(broker) as c:
        await c.ask(connect)
        await c.ask(Subscribe(packet_id=1, subscriptions=(Subscription(filter="q", qos=1),)))
        await c.ask(Disconnect(reason=0))
        await broker.publish("q", b"queued", qos=1)
        await broker.publish("r", b"retained", retain=True, properties=Properties(content_type="x"))
    async with running(store=store) as broker, client(broker) as c:
        connack = await c.ask(connect)
        assert (connack.reason, connack.session_present) == (0, True)
        assert (await c.read()).payload == b"queued"
        async with broker.subscribe("r") as messages:
            message = await asyncio.wait_for(anext(messages), WAIT_S)
            found = (message.topic, message.payload, message.qos, message.retain)
            assert found == ("r", b"retained", 0, True)
            assert message.properties == Properties(content_type="x")


async def test_the_program_may_subscribe_twice() -> None:
    async with running() as broker, broker.subscribe("a") as some, broker.subscribe("b") as others:
        await broker.publish("b", b"2")
        await broker.publish("a", b"1")
        assert (await asyncio.wait_for(anext(some), WAIT_S)).payload == b"1"
        assert (await asyncio.wait_for(anext(others), WAIT_S)).payload == b"2"


class Sum:
    """Knows only the method SUM, which wants a sum."""

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        return Verdict(0x86, reason_string="use SUM")

    async def converse(self, request: ConnectRequest, challenge: Any) -> Verdict:
        if request.auth_method != "SUM":
            return Verdict(0x8C)
        return Verdict(auth_data=b"well done") if await challenge(b"1+2") == b"3" else Verdict(0x87)


def sum_of(data: bytes) -> Properties:
    return Properties(auth_method="SUM", auth_data=data)


@pytest.mark.parametrize(("answer", "reason"), [(b"3", 0), (b"4", 0x87)])
async def test_enhanced_authentication(answer: bytes, reason: int) -> None:
    async with running(authenticator=Sum()) as broker, client(broker) as c:
        challenge = await c.ask(Connect(version=5, client_id="c", properties=sum_of(b"")))
        assert challenge == Auth(reason=0x18, properties=sum_of(b"1+2"))
        connack = await c.ask(Auth(reason=0x18, properties=sum_of(answer)))
        assert isinstance(connack, Connack)
        assert connack.reason == reason
        if not reason:
            assert connack.properties.auth_data == b"well done"
            challenge = await c.ask(Auth(reason=0x19, properties=sum_of(b"again")))
            assert challenge.properties.auth_data == b"1+2"
            assert (await c.ask(Auth(reason=0x18, properties=sum_of(b"3")))).reason == 0


async def test_an_authenticator_refuses_in_every_version() -> None:
    async with running(authenticator=Sum()) as broker:
        for version, reason in ((3, 4), (4, 4), (5, 0x86)):
            async with client(broker, version) as c:  # type: ignore[arg-type]
                assert (await c.ask(Connect(version=version, client_id="c"))).reason == reason
                assert await c.read() is None
        async with client(broker) as c:
            assert (await c.ask(Connect(version=5, properties=Properties(auth_method="X")))).reason == 0x8C


class Watcher:
    filters = ("a", "private/#")

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def connect(self, event: Any) -> None:
        self.seen.append(("connect", event.client_id, event.protocol_version))

    @hookimpl
    async def authorise(self, access: Any) -> Any:
        await asyncio.sleep(0)
        return not access.topic.startswith("private")

    @hookimpl
    def subscribe(self, request: Any) -> None:
        self.seen.append(("subscribe", request.filters))

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> None:
        self.seen += [("publish", each.username, each.topic, each.payload) for each in messages]

    @hookimpl
    def disconnect(self, event: Any) -> None:
        self.seen.append(("disconnect", event.client_id))


async def test_plugins_see_and_veto() -> None:
    plugin = Watcher()
    async with running(plugins=[plugin]) as broker:
        async with client(broker) as c:
            await c.ask(Connect(version=5, client_id="c", username="ann"))
            filters = (Subscription(filter="a", qos=1), Subscription(filter="private/#"))
            suback = await c.ask(Subscribe(packet_id=1, subscriptions=filters))
            assert isinstance(suback, Suback)
            assert suback.reasons == (1, 0x87)
            refused = await c.ask(Publish(topic="private/x", qos=1, packet_id=7))
            assert (refused.packet_id, refused.reason) == (7, 0x87)
            answers = [await c.ask(Publish(topic="a", payload=b"1", qos=1, packet_id=8)), await c.read()]
            assert {type(answer) for answer in answers} == {Publish, Puback}
        async with client(broker) as c:
            connack = await c.ask(Connect(version=5, will=Will(topic="private/will")))
            assert connack.reason == 0x87
        await asyncio.sleep(0.1)
    assert plugin.seen[:4] == [
        ("connect", "c", 5),
        ("subscribe", (("a", 1),)),
        ("publish", "ann", "a", b"1"),
        ("disconnect", "c"),
    ]


async def test_disconnect_and_stop_say_why() -> None:
    async with running() as broker:
        async with client(broker) as c:
            await c.ask(Connect(version=5, client_id="c"))
            await broker.disconnect("c")
            assert (await c.read()).reason == 0x98
            assert await c.read() is None
        async with client(broker) as c:
            await c.ask(Connect(version=5, client_id="c"))
            stopping = asyncio.create_task(broker.stop())
            assert (await c.read()).reason == 0x8B
            await stopping


def test_the_example_of_an_embedded_broker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where its store goes
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "embed.py"))
    assert capsys.readouterr().out.splitlines()[1] == "sensors/kitchen 21.5"
