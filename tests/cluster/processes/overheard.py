"""What a guest does not tell, heard on its connections: a QoS 2 message that comes under the packet
identifier of another one, which has not been released. It takes that for the other one, and nobody sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemq.testing.links import Link
from tidemq.wire import Connack, Connect, Decoder, Publish, Pubrel


class OverheardLink(Link):
    """Of this client's connections, and others, of which nothing is heard. `on_hidden` gets the payload."""

    def __init__(
        self, target: Callable[[], int], client_id: str, on_hidden: Callable[[int, bytes], None]
    ) -> None:
        super().__init__(target)
        self._client_id, self._on_hidden = client_id, on_hidden
        self._decoders: dict[Any, Decoder] = {}  # of what is said to the client, by passage
        self._unreleased: dict[int, bytes] = {}  # payloads by packet identifier

    async def _write(self, passage: Any, writer: asyncio.StreamWriter, data: bytes) -> None:
        await super()._write(passage, writer, data)
        if writer is passage.near and passage in self._decoders:
            self._hear(self._decoders[passage], data)
        elif writer is passage.far and passage.begun == data:  # the first that it says
            self._meet(passage, data)

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
            self._decoders[passage] = Decoder(connect.version)

    def _hear(self, decoder: Decoder, data: bytes) -> None:
        decoder.feed(data)
        for packet in decoder:
            if isinstance(packet, Connack) and not packet.session_present:
                self._unreleased.clear()
            elif isinstance(packet, Pubrel):
                self._unreleased.pop(packet.packet_id, None)
            elif isinstance(packet, Publish) and packet.qos == 2:
                known = self._unreleased.setdefault(packet.packet_id, packet.payload)
                if known != packet.payload:
                    self._on_hidden(packet.packet_id, packet.payload)
