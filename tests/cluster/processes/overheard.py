"""What a guest does not tell, heard on its connections: a QoS 2 message that comes under the packet
identifier of another one, which it may not have released. Then it takes that for the other one, and nobody
sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemq.testing.links import Link
from tidemq.wire import Connack, Connect, Decoder, Pubcomp, Publish


class OverheardLink(Link):
    """Of this client's connections, and others, of which nothing is heard. `on_hidden` gets the payload."""

    def __init__(
        self, target: Callable[[], int], client_id: str, on_hidden: Callable[[int, bytes], None]
    ) -> None:
        super().__init__(target)
        self._client_id, self._on_hidden = client_id, on_hidden
        self._decoders: dict[Any, tuple[Decoder, Decoder]] = {}  # of what it says and hears, by passage
        self._unreleased: dict[int, set[bytes]] = {}  # payloads that it may have, by packet identifier

    async def _write(self, passage: Any, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer is passage.far:  # the answer to it must not be heard before it
            if passage.begun == data:  # the first that it says
                self._meet(passage, data)
            elif passage in self._decoders:
                self._hear_client(self._decoders[passage][0], data)
        await super()._write(passage, writer, data)
        if writer is passage.near and passage in self._decoders:
            self._hear_broker(self._decoders[passage][1], data)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._pass_on(reader, writer)
        finally:
            for each in [each for each in self._decoders if each.near is writer]:
                del self._decoders[each]

    def _meet(self, passage: Any, data: bytes) -> None:
        decoder = Decoder()
        decoder.feed(data)
        connect = next(decoder)
        if isinstance(connect, Connect) and connect.client_id == self._client_id:
            self._decoders[passage] = (decoder, Decoder(connect.version))
            self._hear_client(decoder, b"")

    def _hear_client(self, decoder: Decoder, data: bytes) -> None:
        """What is passed on to the client may be lost in the end of its connection, a PUBREL too: it has
        released an identifier when it says so.
        """
        decoder.feed(data)
        for packet in decoder:
            if isinstance(packet, Pubcomp):
                self._unreleased.pop(packet.packet_id, None)

    def _hear_broker(self, decoder: Decoder, data: bytes) -> None:
        decoder.feed(data)
        for packet in decoder:
            if isinstance(packet, Connack) and not packet.session_present:
                self._unreleased.clear()
            elif isinstance(packet, Publish) and packet.qos == 2:
                known = self._unreleased.setdefault(packet.packet_id, set())
                if known - {packet.payload}:
                    self._on_hidden(packet.packet_id, packet.payload)
                known.add(packet.payload)
