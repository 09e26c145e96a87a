"""Proxies between clients and a broker that do what no broker may: each has one lie, which must be found."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from tidemq.errors import ProtocolError
from tidemq.testing.links import Proxy
from tidemq.wire import (
    Connack,
    Connect,
    Decoder,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
    encode,
)

READ_BYTES = 65_536
VERSION = 5
OTHER_ID = 60_000  # a packet identifier that the broker does not use so soon


class Passage:
    """One connection; honest. Liars change what goes up, to the broker, or down, to the client."""

    def __init__(self, liar: Liar, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.liar = liar
        self._client, self._broker = client, broker

    def up(self, packet: Packet) -> None:
        self.to_broker(packet)

    def down(self, packet: Packet) -> None:
        self.to_client(packet)

    def to_broker(self, *packets: Packet) -> None:
        self._broker.write(b"".join(encode(each, VERSION) for each in packets))

    def to_client(self, *packets: Packet) -> None:
        self._client.write(b"".join(encode(each, VERSION) for each in packets))


class Liar(Proxy):
    """`lies`: whether the passages lie now. `kept` is a passage's to use, over connections."""

    def __init__(self, broker_port: int, passage: type[Passage]) -> None:
        super().__init__()
        self._broker_port, self._passage = broker_port, passage
        self.lies = True
        self.kept: list[Packet] = []

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        passage = self._passage(self, writer, broker)
        with suppress(ProtocolError):
            back = asyncio.create_task(self._read(from_broker, passage, up=False))
            await self._read(reader, passage, up=True)
            back.cancel()
            broker.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, passage: Passage, *, up: bool) -> None:
        decoder = Decoder(VERSION)
        while data := await reader.read(READ_BYTES):
            decoder.feed(data)
            for packet in decoder:
                honest = passage.to_broker if up else passage.to_client
                (honest if not self.lies else passage.up if up else passage.down)(packet)


class Loses(Passage):
    """Says that the client has the third message."""

    def down(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.packet_id == 3:
            self.to_broker(Puback(packet_id=3))
        else:
            self.to_client(packet)


class Invents(Passage):
    """The third message becomes one that nobody has published."""

    def down(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.packet_id == 3:
            packet = replace(packet, payload=b"invented")
        self.to_client(packet)


class Repeats(Passage):
    """The third message comes again under another identifier; the broker does not hear of that."""

    def up(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec) and packet.packet_id == OTHER_ID:
            self.to_client(Pubrel(packet_id=OTHER_ID))
        elif not (isinstance(packet, Puback | Pubcomp) and packet.packet_id == OTHER_ID):
            self.to_broker(packet)

    def down(self, packet: Packet) -> None:
        self.to_client(packet)
        if isinstance(packet, Publish) and packet.packet_id == 3:
            self.to_client(replace(packet, packet_id=OTHER_ID))


class Swaps(Passage):
    """The third message comes after the fourth."""

    def down(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.packet_id == 3:
            self.liar.kept.append(packet)
        else:
            self.to_client(packet)
        if isinstance(packet, Publish) and packet.packet_id == 4:
            self.to_client(self.liar.kept.pop())


class Swallows(Passage):
    """The fourth message has the identifier of the third, which is not yet released."""

    def up(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec | Pubcomp) and packet.packet_id == 3:
            return
        self.to_broker(packet)

    def down(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.packet_id == 4:
            packet = replace(packet, packet_id=3)
        self.to_client(packet)


class ForgetsSession(Passage):
    """Says that there is no session."""

    def down(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            packet = replace(packet, session_present=False)
        self.to_client(packet)


class KeepsSession(Passage):
    """Goes on with a session that was to end."""

    def up(self, packet: Packet) -> None:
        if isinstance(packet, Connect) and packet.clean_start:
            self.to_client(Connack())
        else:
            self.to_broker(packet)


class KeepsSubscription(Passage):
    """Says that the client is not subscribed any more."""

    def up(self, packet: Packet) -> None:
        if isinstance(packet, Unsubscribe):
            self.to_client(Unsuback(packet_id=packet.packet_id, reasons=(0,)))
        else:
            self.to_broker(packet)


class KeepsRetained(Passage):
    """Says that a retained message is removed."""

    def up(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and not packet.payload:
            self.to_client(Puback(packet_id=packet.packet_id))
        else:
            self.to_broker(packet)


class BringsBack(Repeats):
    """On a later connection a message comes again that was acknowledged."""

    def down(self, packet: Packet) -> None:
        self.to_client(packet)
        if isinstance(packet, Publish) and not self.liar.kept:
            self.liar.kept.append(packet)
        if isinstance(packet, Connack) and self.liar.kept:
            again = self.liar.kept[0]
            assert isinstance(again, Publish)
            self.to_client(replace(again, packet_id=OTHER_ID, dup=True))


class Sticks(Passage):
    """Never says that a message is taken."""

    def down(self, packet: Packet) -> None:
        if not isinstance(packet, Puback | Pubrec):
            self.to_client(packet)
